"""Adds the pages outside docs/ to the site: README.md is its home, and the README of every example is a page.

A link to a file that is no page leads to a copy of that file. Links to tests and folders become text.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
PAGES |= {uri: uri for uri in map(str, (p.relative_to(ROOT) for p in ROOT.glob("[a-z]*/README.md")))}
PAGES |= {uri: uri for uri in map(str, (p.relative_to(ROOT) for p in ROOT.glob("examples/*/README.md")))}
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Fill the addresses of the site and of its sources from DOCS_REPOSITORY, such as
    https://github.com/OWNER/clustertrain. Without it the site has neither."""
    if repository := os.environ.get("DOCS_REPOSITORY", "").rstrip("/"):
        owner, name = repository.split("/")[-2:]
        config.repo_url, config.edit_uri = repository, f"{repository}/edit/main/docs/"
        config.site_url = f"https://{owner}.github.io/{name}/"
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages outside docs/, and the other files that pages link to."""
    sources = {f"docs/{file.src_uri}": file.src_uri for file in files.documentation_pages()} | PAGES
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    for source in sources:
        for target in _targets(source):
            if target not in sources and not target.startswith("docs/"):
                uri = f"files/{target}"
                if files.get_file_from_path(uri) is None and (ROOT / target).is_file():
                    files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page to the places of their targets on the site."""
    by_uri = {uri: source for source, uri in PAGES.items()}
    source = by_uri.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def led(link: re.Match[str]) -> str:
        target = _target(source, link[1])
        uri = PAGES.get(target) or (
            target.removeprefix("docs/") if target.startswith("docs/") else f"files/{target}"
        )
        if files.get_file_from_path(uri) is None:  # a folder, or a test: it stays in the repository
            return "]"
        return f"]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or '.')}{link[2] or ''})"

    return LINK.sub(led, markdown)


def _targets(source: str) -> set[str]:
    return {_target(source, link[1]) for link in LINK.finditer((ROOT / source).read_text())}


def _target(source: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
