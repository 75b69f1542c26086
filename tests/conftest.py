"""CLUSTERTRAIN_REQUIRE=local,gpu,…: a skipped test of a component named there is a failure.

A component is a marker of its tests; `local` is every test without one; a test with several needs them all.
The tests of `faults` are whole runs that meet one fault after another: they take longer than all others
together, and run when they are required. So do those of `nightly`, for which one run of CI has no time.
"""

import gc
import math
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from clusters.kube_client import is_built
from clustertrain.run_files.folder.run_dir import RunDir

# What every test may use.
pytest_plugins = [
    "clusters.containers",
    "support.ray_clusters",
    "support.s3_servers",
    "support.small_job",
    "support.whole_run",
    "launchers.kubernetes.rendered_jobs",
]
gc.disable()  # until all tests are collected: a tenth of that time were searches for garbage
# What the commands of the tests remember of their runs is not this user's.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="ct-state-")
_CLUSTERS = ("docker", "gridengine", "kubernetes", "slurm")  # a folder and a marker each
COMPONENTS = {*_CLUSTERS, "faults", "gpu", "newer_kuberay", "nightly", "s3"}
_LONG = {"faults", "nightly"}
_OF_WHOLE_RUNS = (*_CLUSTERS, "examples", "whole")
# What a unit test has none of: `make unit` runs as any user, in a minute on two cores.
_NOT_UNIT = COMPONENTS | {"run", "slow", "examples", "interleavings", "whole"}
_SERVERS_AND_RANKS = {"moto_endpoint", "moto_s3", "ranks", "s3", "versitygw_endpoint", "versitygw_s3"}
# Files whose tests share nothing that is dear: xdist gives them out one by one, all others as a whole.
_ONE_BY_ONE = re.compile(
    r"tests/(whole/|slurm/test_(training|bad_nodes|slurm_on_s3|batch_shell)\.py"
    r"|kubernetes/test_(rayjob|role|pod_faults|kube_dry_run)\.py)"
)
_KUBERNETES = "tests/kubernetes/"
REQUIRED = {name for name in os.environ.get("CLUSTERTRAIN_REQUIRE", "").split(",") if name}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run that nobody has started, in a storage of its own."""
    return RunDir.newest(str(tmp_path), "digits")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_configure() -> None:
    if unknown := REQUIRED - COMPONENTS - {"local"}:
        raise pytest.UsageError(
            f"CLUSTERTRAIN_REQUIRE names {', '.join(sorted(unknown))}; "
            f"there are: {', '.join(sorted(COMPONENTS | {'local'}))}."
        )


class _Scheduling(LoadFileScheduling):
    """Half of the processes run the tests of Kubernetes as soon as its programs are built. These tests wait
    for each other: at the end of all tests the cores would be idle meanwhile."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if _ONE_BY_ONE.match(nodeid) else super()._split_scope(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        """A process has the test that it runs and the next: a third could start sooner elsewhere."""
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        first = self.nodes.index(node) < len(self.nodes) / 2 and is_built()
        wanted = (scope for scope in self.workqueue if scope.startswith(_KUBERNETES) == first)
        if scope := next(wanted, None):
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling:
    return _Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first, and the quick tests fill the gaps at the end. A file of each folder by turns: two of
    one folder would wait for each other, where a test must have the cluster for itself. Tests of Kubernetes
    that need the image are last of the whole runs: by then those of docker have built it."""
    files: dict[Path, list[Path]] = {}
    for item in items:
        of_folder = files.setdefault(item.path.parent, [])
        if item.path not in of_folder:
            of_folder.append(item.path)

    def turn(item: pytest.Item) -> float:
        if _folder_of(item) not in _OF_WHOLE_RUNS:
            return math.inf
        needs_image = _folder_of(item) == "kubernetes" and "image" in item.fixturenames
        return files[item.path.parent].index(item.path) + (len(items) if needs_image else 0)

    items.sort(key=turn)
    for item in items:
        if not (_marks_of(item) & _NOT_UNIT or _SERVERS_AND_RANKS & {*item.fixturenames}):
            item.add_marker("unit")
        if _marks_of(item) & _LONG - REQUIRED:
            item.add_marker(pytest.mark.skip(reason="takes long: `make test-faults` runs it"))


def _folder_of(item: pytest.Item) -> str:
    """The folder in tests/: launchers/slurm/ has unit tests, slurm/ a cluster."""
    return item.path.relative_to(Path(__file__).parent).parts[0]


def _marks_of(item: pytest.Item) -> set[str]:
    """The folder counts as a mark."""
    return {_folder_of(item), *(mark.name for mark in item.iter_markers())}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    components = COMPONENTS & _marks_of(item) or {"local"}
    if report.skipped and components <= REQUIRED:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = (
            f"{reason}\nCLUSTERTRAIN_REQUIRE={','.join(sorted(REQUIRED))}: this may not be skipped."
        )
    return report
