"""The pages agree with the code: generated tables, links with targets, valid job files, the import graph."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import grimp
import pytest
import yaml
from click.testing import CliRunner

import clustertrain
from clustertrain.cli.grid import points_of
from clustertrain.cli.main import main
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.run_files import folder
from clustertrain.run_files.states import STATES
from support.commands import ran

ROOT = Path(__file__).parents[1]
FOLDERS = ("", "docs/*/", "examples/*/", "[!.]*/")
PAGES = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}[!.]*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchor(heading: str) -> str:
    """The anchor that a heading gets: lower case, spaces to hyphens, other punctuation dropped."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def test_the_pages_are_found():
    pages = {page_id(page) for page in PAGES}
    assert {"README.md", "docs/project/architecture.md", "examples/digits/README.md"} <= pages


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_has_a_target(page):
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        target, _, fragment = unquote(link).partition("#")
        path = (page.parent / target) if target else page
        assert path.exists(), f"{page_id(page)} links to {link}"
        if fragment:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert fragment in {anchor(heading) for heading in headings}, f"{page_id(page)} links to {link}"


@pytest.mark.slow
def test_the_site_has_every_page_and_no_dead_link(tmp_path):
    """mkdocs.yml is strict: a page outside the navigation and a link without a target are errors. The site
    works from the disk: every script is in it, and so are the worker of the search and its index."""
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    assert "examples/digits/index.html" in (tmp_path / "index.html").read_text()
    assert "submit" in (tmp_path / "reference" / "python.html").read_text()
    assert "--grid" in (tmp_path / "reference" / "commands.html").read_text()
    assert (tmp_path / "search" / "search_index.js").read_text().startswith("var __index = {")
    (tmp_path / "404.html").unlink()  # only a server shows it
    for page in tmp_path.rglob("*.html"):
        scripts = re.findall(r'<script src="([^"]+)"', page.read_text())
        assert any(script.endswith("site/iframe-worker.js") for script in scripts), page
        assert all((page.parent / script).is_file() for script in scripts), page


def states_markdown() -> str:
    rows = ["| state | meaning | causes | exit codes | restarts automatically |", "|---|---|---|---|---|"]
    for name, state in STATES.items():
        codes = ", ".join(str(code) for code in state.exit_codes) or "none yet"
        causes = ", ".join(state.causes)
        rows.append(
            f"| {name} | {state.meaning} | {causes} | {codes} | {'yes' if state.restarts else 'no'} |"
        )
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("program", "page"), [("commands", "commands"), ("errors", "errors"), ("json_fields", "json")]
)
def test_a_generated_page_is_what_its_program_writes(tmp_path, program, page):
    command = [f"docs/site/{program}.py", f"docs/reference/{page}.md"]
    shown = ROOT / command[1]
    again = Path(shutil.copy(shown, tmp_path))
    ran([sys.executable, ROOT / command[0], again], code=0)
    assert again.read_text() == shown.read_text(), f"python {' '.join(command)}"


def test_the_table_of_states_is_that_of_the_code():
    page = (ROOT / "docs/reference/states.md").read_text()
    shown = re.search(r"<!-- states: .*?-->\n(.*)<!-- end of states -->", page, re.DOTALL)[1]
    assert shown == states_markdown(), "put what states_markdown() returns between the marks"


@pytest.mark.parametrize("page", ["README.md", "docs/guides/data.md", "docs/guides/port.md"])
def test_the_job_files_shown_are_jobs(page, tmp_path):
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        rest = "" if block.startswith("name:") else "name: a\ntask: m:C\ntrain: {epochs: 1, batch_size: 1}\n"
        path = tmp_path / "job.yaml"
        path.write_text(rest + block)
        job = load_job(path, environ={})
        assert job.data or job.script


def settings_in(table_rows: str) -> list[str]:
    """The pieces of code in tables that are settings of a job, such as `train: {accumulate: 4}`."""
    keys = "|".join(name for name in Job.model_fields if name != "code")
    return re.findall(rf"`((?:{keys}): [^`]+)`", table_rows)


def test_the_settings_in_the_tables_for_other_launchers_are_valid(tmp_path):
    text = (ROOT / "docs" / "guides" / "port.md").read_text()
    found = settings_in("".join(re.findall(r"^\|.*\n", text, re.MULTILINE)))
    assert len(found) > 40
    for setting in found:
        job = yaml.safe_load(setting)
        if "task" in job or "function" in job or "script" in job or "module" in job:
            job |= {"train": {"epochs": 1, "batch_size": 1}} if "task" in job else {}
        elif isinstance(job.get("args"), list):
            job |= {"script": "train.py"}
        else:
            train = job.get("train", {})
            length = {} if {"epochs", "steps"} & set(train) else {"epochs": 1}
            batch = {} if {"batch_size", "global_batch_size"} & set(train) else {"batch_size": 1}
            job |= {"task": "train:Train", "train": train | length | batch}
        if job.get("train", {}).get("sync_batchnorm"):  # GPUs only
            job |= {"resources": {"workers": 1, "gpus_per_worker": 1}}
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump({"name": "a"} | job))
        load_job(path, environ={})


def test_the_grid_of_the_page_on_sweeps_has_the_runs_of_its_table(monkeypatch):
    text = (ROOT / "docs/guides/sweeps-and-python.md").read_text()
    monkeypatch.chdir(ROOT)
    line = re.search(r"^    clustertrain run (.*)", text, re.MULTILINE)[1]
    job_file, _, override, _, grid = line.split()
    names = [load_job(job_file, point).name for point in points_of(job_file, (override,), [grid])]
    assert names == re.findall(r"^(digits-\S+)", text, re.MULTILINE)


def test_the_loop_for_a_sweep_of_hydra_starts_valid_jobs(tmp_path, monkeypatch):
    """Each command of the loop is tried with `check` in place of `run`."""
    text = (ROOT / "docs/guides/port.md").read_text()
    monkeypatch.chdir(tmp_path)
    job = re.search(r"^```yaml\n(name: hydra\n.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    Path("job.yaml").write_text(job)
    Path("train_hydra.py").touch()
    loop = re.search(r"^```bash\n(for .*?^done\n)", text, re.MULTILINE | re.DOTALL)[1]
    show = "clustertrain() { printf '%s\n' \"$@\"; }\n"
    shown = ran(["bash", "-euc", show + loop], code=0).stdout
    found = []
    for arguments in shown.removeprefix("run\n").split("\nrun\n"):
        done = CliRunner().invoke(main, ["check", "--no-code", "--defaults", *arguments.splitlines()])
        assert done.exit_code == 0, done.output
        found += re.findall(r"^name: (.*)$", done.output, re.MULTILINE)
    assert found == ["hydra-0-1", "hydra-0-01"]


def test_the_job_of_the_readme_is_the_example():
    """The script of examples/scripts; only its storage differs."""
    block = re.search(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]
    path = ROOT / "examples" / "scripts" / "job.yaml"
    lines = {line.partition("#")[0].rstrip() for line in path.read_text().splitlines()}
    shown = {line.partition("#")[0].rstrip() for line in block.splitlines()}
    assert shown - lines <= {"storage: runs"}


def test_a_page_keeps_its_budget_of_words():
    """A reader has little time: who adds a sentence to a full page takes another one out."""
    budgets = yaml.safe_load((ROOT / "tests" / "word_budgets.yaml").read_text())
    total, of_pages = budgets["total"], budgets["pages"]
    words = {page_id(page): len(page.read_text().split()) for page in PAGES if page.parent != ROOT / "tests"}
    assert set(of_pages) == set(words), "tests/word_budgets.yaml has a budget for each page"
    over = {page: (number, of_pages[page]) for page, number in words.items() if number > of_pages[page]}
    assert not over, "(words, budget): shorten them"
    assert (found := sum(words.values())) <= total, (
        f"{found} words in all pages, {total} are allowed: shorten any"
    )
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 60


PEERS = r"torchrun|mp\.spawn|Accelerate|Lightning|TorchTrainer|symmetric-run|aws s3|curl|torch\.save|dcp\."
MEASURED = (ROOT / "docs/performance.md", ROOT / "docs/project/tested.md")
FIGURE = r"(?<![\w.])\d+(?:\.\d+)?\s*(?:s|ms|seconds|minutes|[kMG]B|samples/s)(?!\w)"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in MEASURED], ids=page_id)
def test_only_a_written_page_has_figures_beside_the_name_of_a_peer(page):
    """A program writes docs/performance.md, so its figures were measured together."""
    for part in re.split(r"\n\s*\n|\n(?=\|)", page.read_text()):
        figure = re.search(FIGURE, part)
        assert not (figure and re.search(PEERS, part)), f"{figure[0]}: {part}"


def test_the_picture_of_a_run_has_the_paths_of_its_folder():
    picture = (ROOT / "docs" / "pictures" / "flow.svg").read_text()
    shown = re.findall(r">((?:[\w.…-]+/)+[\w.-]*)<", picture)
    assert len(shown) >= 6
    for path in shown:
        names = [re.sub(r"^1$", "<n>", re.sub(r"-\d", "-<r>", name)) for name in path.split("/")]
        for name in names:
            known = name.replace("events", "events*") in folder.__doc__ or name in ("…", "model.pt")
            assert known, f"{path}: run_files/folder/ has no {name}"


def test_the_newest_version_of_the_changelog_is_the_packages():
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == clustertrain.__version__


def tracked_files() -> list[Path]:
    listed = ran(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    if listed.returncode:
        pytest.skip("this is no git checkout: which files are the project's is not known")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_path_of_the_machine_it_was_written_on():
    """Such paths are the folder of the checkout and the home folder of its user."""
    private = re.compile(rf"(?<![\w.~*-])(/home/\w+|/root|/Users/\w+|{re.escape(str(ROOT))})/[\w.]".encode())
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data:
            continue  # not text
        found = private.search(data)
        assert found is None, f"{path}: {found[0].decode()}"


def test_the_architecture_names_the_imports_of_each_folder():
    """The tree of the page against the import graph. It leaves out files that import nothing."""
    graph = grimp.build_graph("clustertrain", cache_dir=None)
    imports: dict[str, set[str]] = {}
    for module in graph.modules - {"clustertrain"}:
        folder = module.split(".")[1]
        imported = graph.find_modules_directly_imported_by(module) - {"clustertrain"}
        imports.setdefault(folder, set()).update({name.split(".")[1] for name in imported} - {folder})
    leaves = {folder for folder, others in imports.items() if not others}
    page = (ROOT / "docs/project/architecture.md").read_text()
    tree = page.partition("src/clustertrain/\n")[2].partition("```")[0]
    drawn = {}
    for folder, text in re.findall(r"^  (\w+)(?:/|\.py)( .*\n(?:    .*\n)*)", tree, re.MULTILINE):
        drawn[folder] = {name.partition(".")[0] for name in text.partition("<-")[2].split()}
    assert drawn == {folder: others - leaves for folder, others in imports.items()}
