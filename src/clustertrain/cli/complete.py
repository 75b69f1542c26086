"""What the shell completes: job files, runs that this user started, data sets of a job.

The shell calls it at every TAB, so nothing here imports pydantic, and no storage or scheduler is asked.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from clustertrain.node.user_folders import known_runs_folder
from clustertrain.regular_file import read_file

_SUFFIXES = (".yaml", ".yml")
_MOST_BYTES = 1 << 20


def job_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete to the job files and folders that begin with the typed text."""
    return _items(incomplete, _found_job_files(incomplete))


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete to the known runs, job files and folders that begin with the typed text."""
    names = (name for name in _known_names() if name.startswith(incomplete))
    return _items(incomplete, [*sorted(set(names)), *_found_job_files(incomplete)])


def data_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete to the data sets of the job file that the command line names."""
    names = _data_sets(Path(str(ctx.params.get("target") or "")))
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _items(incomplete: str, found: list[str]) -> list[CompletionItem]:
    """The found words, and folders beside them. Without words, or with one that needs quotes, the shell
    completes files itself: it adds quotes, and no space after a folder."""
    if not found or any(shlex.quote(word) != word for word in found):
        return [CompletionItem(incomplete, type="file")]
    folders = (f"{path}/" for path in _beginning_with(incomplete) if Path(path).is_dir())
    return [CompletionItem(word) for word in [*found, *sorted(folders)]]


def _found_job_files(incomplete: str) -> list[str]:
    return sorted(path for path in _beginning_with(incomplete) if path.endswith(_SUFFIXES))


def _beginning_with(incomplete: str) -> Iterable[str]:
    """The paths that begin with the typed text, as typed. Hidden ones need the dot; those below ~ are
    left to the shell."""
    folder, slash, start = incomplete.rpartition("/")
    with suppress(OSError):  # no such folder, or no permission: nothing to complete
        for path in Path(folder or slash or ".").iterdir():
            if path.name.startswith(start) and (start or not path.name.startswith(".")):
                yield f"{folder}{slash}{path.name}"


def _known_names() -> Iterable[str]:
    """The names in the files of known runs; a file that cannot be read is left out."""
    with suppress(OSError):
        for path in known_runs_folder().glob("*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                yield str(json.loads(read_file(path))["name"])


def _data_sets(job_file: Path) -> Iterable[str]:
    """The data sets of a job file, without its rules: it may be half-written."""
    import yaml

    with suppress(OSError, ValueError, TypeError, AttributeError, yaml.YAMLError):
        if job_file.suffix in _SUFFIXES and job_file.stat().st_size <= _MOST_BYTES:
            return [str(name) for name in yaml.safe_load(read_file(job_file).decode()).get("data") or ()]
    return []
