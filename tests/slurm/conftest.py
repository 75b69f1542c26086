"""`cluster`: three nodes, one cluster for all tests of a process, healed after each.
`fresh_cluster(nodes=1, EnforcePartLimits="NO")`: one of the test's own, with settings of slurm.conf.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from clusters.slurm import SlurmCluster, why_not
from slurm.login import Login
from slurm.slurm_run import SlurmRun


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def _possible() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(shared=[tmp_path_factory.getbasetemp()]) as made:
        yield made


@pytest.fixture(autouse=True)
def _healed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").heal()


@pytest.fixture
def login(cluster: SlurmCluster, tmp_path: Path) -> Login:
    return Login(cluster, tmp_path)


@pytest.fixture
def make(cluster: SlurmCluster, tmp_path: Path) -> Callable[..., SlurmRun]:
    """Makes runs of which each is submitted to the cluster."""
    return partial(SlurmRun, cluster, tmp_path)


@pytest.fixture
def fresh_cluster(
    _possible: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., SlurmCluster]]:
    with contextlib.ExitStack() as stack:
        yield lambda nodes=1, **settings: stack.enter_context(
            SlurmCluster(nodes, [tmp_path_factory.getbasetemp()], **settings)
        )
