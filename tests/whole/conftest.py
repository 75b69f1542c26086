from pathlib import Path

import pytest

from support.leftovers import left_after
from support.whole_run import Run

GONE = "raise ImportError('a run with --no-ray imports Ray')\n"


@pytest.fixture
def make_run(tmp_path):
    """Makes runs, and ends what a failed test left of them."""
    runs = []

    def make(name: str, **sections) -> Run:
        runs.append(Run(tmp_path, name, **sections))
        return runs[-1]

    yield make
    for run in runs:
        if run.process is not None and not run.process.stdout.closed:
            run.process.kill()
            run.process.communicate()
            left_after(5, run.before)


@pytest.fixture(params=["with Ray", "without Ray"])
def start(request, tmp_path):
    """Starts a run in both ways. Without Ray, no process of it can import Ray."""
    if request.param == "with Ray":
        return Run.start
    (tmp_path / "site" / "ray").mkdir(parents=True)
    (tmp_path / "site" / "ray" / "__init__.py").write_text(GONE)

    def start(run, **options):
        return run.start("--no-ray", PYTHONPATH=str(tmp_path / "site"), **options)

    return start


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.run)
