import fcntl
import functools
import os
from pathlib import Path

import pytest

from leftovers import left_after
from whole_run import Run


@pytest.fixture
def make_run(tmp_path):
    """Makes runs, and ends what a failed test left of them."""
    runs = []

    def make(name: str, **sections) -> Run:
        runs.append(Run(tmp_path, name, **sections))
        return runs[-1]

    yield make
    for run in runs:
        if run.process is not None and run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
            left_after(5, run.before)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """The weights of a run that nothing disturbed, by its number of workers; one for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    @functools.cache
    def weights(workers):
        run = Run(
            folder / "reference",
            f"reference-{workers}",
            task="faulty:Faulty",
            train={"epochs": 3, "batch_size": 4, "log_every": 1},
            resources={"workers": workers, "cpus_per_worker": 0.5},
        )
        with (folder / f"reference-{workers}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            output = run.start().end(0)  # one that is finished is left as it is
        assert run.result.state == "done", output
        assert run.result.step == (21 if workers == 2 else 15)
        return run.weights()

    return weights


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.run)
