"""`kube`: a cluster with the KubeRay operator, one for all workers of a run, while others use it too.
`kube_alone`: the same, while no other test does, and healed afterwards: for what stops the operator or the
API server, or changes the node.
`namespace`: one of the test's own there, `restricted`, gone afterwards.
`shared_namespace`: one for the tests of a module, with the claim `runs`; each has runs of its own name there.
`make`: makes runs in it; `user`: makes users there with a job that no pod can run.

The limit of a test's time is for the test alone, not for the fixtures before it, which wait for their turn.

CLUSTERTRAIN_KUBE_MEETING=FOLDER keeps a cluster from run to run, with the images in it, while another process
is in `shared_cluster(FOLDER / "kube-cluster")` of clusters/kube.py.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusters.kube import KubeCluster, shared_cluster, why_not
from clusters.kube_api import manifest
from clusters.kube_client import USERS_CLUSTER
from clusters.kube_users import UsersCluster
from kubernetes.cluster_user import User, write_job
from kubernetes.rayjob_runs import CLAIM, RayJobRun

_LIMIT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.kubernetes)
            own = item.get_closest_marker("timeout")
            limit_s = own.args[0] if own else _LIMIT_S
            item.add_marker(pytest.mark.timeout(limit_s, func_only=True), append=False)


@pytest.fixture(scope="session")
def _meeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all workers of this run, and for no other run, unless it is asked to join one."""
    if stored := os.environ.get("CLUSTERTRAIN_KUBE_MEETING"):
        return Path(stored)
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def _cluster(_meeting: Path) -> Iterator[KubeCluster | UsersCluster]:
    if USERS_CLUSTER in os.environ:
        with contextlib.closing(UsersCluster()) as theirs:
            theirs.start_operator()
            yield theirs
    elif reason := why_not():
        pytest.skip(reason)
    else:
        with shared_cluster(_meeting / "kube-cluster") as ours:
            yield ours


@contextlib.contextmanager
def _turn(meeting: Path, kind: int) -> Iterator[None]:
    """Who waits to be alone holds the gate meanwhile: no one overtakes it."""
    with (meeting / "kube-turn").open("a") as turn:
        with (meeting / "kube-gate").open("a") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(turn, kind)
        yield


@pytest.fixture
def kube(_cluster: KubeCluster | UsersCluster, _meeting: Path) -> Iterator[KubeCluster | UsersCluster]:
    with _turn(_meeting, fcntl.LOCK_SH):
        yield _cluster


@pytest.fixture
def kube_alone(_cluster: KubeCluster | UsersCluster, _meeting: Path) -> Iterator[KubeCluster | UsersCluster]:
    with _turn(_meeting, fcntl.LOCK_EX):
        yield _cluster
        _cluster.heal()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    alone = "kube_alone" in request.fixturenames
    cluster = request.getfixturevalue("kube_alone" if alone else "kube")
    made = cluster.make_namespace()
    yield made
    if alone:
        cluster.heal()  # the API server may be away
    cluster.delete_namespace(made)


@pytest.fixture(scope="module")
def shared_namespace(_cluster: KubeCluster | UsersCluster, _meeting: Path) -> Iterator[str]:
    with _turn(_meeting, fcntl.LOCK_SH):
        made = _cluster.make_namespace()
        _cluster.make_volume(made, "runs")
    yield made
    with _turn(_meeting, fcntl.LOCK_SH):
        _cluster.delete_namespace(made)


@pytest.fixture
def other_namespace(kube: KubeCluster | UsersCluster) -> Iterator[str]:
    made = kube.make_namespace()
    yield made
    kube.delete_namespace(made)


@pytest.fixture
def make(
    request: pytest.FixtureRequest, namespace: str, image: str, tmp_path: Path
) -> Callable[..., RayJobRun]:
    """Runs on the cluster that the test asks for, with a volume that all pods see."""
    cluster = request.getfixturevalue("kube_alone" if "kube_alone" in request.fixturenames else "kube")
    cluster.load(image)
    cluster.make_volume(namespace, CLAIM)

    def make_run(name: str, **sections: object) -> RayJobRun:
        return RayJobRun(cluster, namespace, tmp_path, name, image=image, **sections)

    return make_run


@pytest.fixture
def user(kube: KubeCluster | UsersCluster, namespace: str, tmp_path: Path) -> Callable[..., User]:
    """user(section=…) is alone in a namespace with a claim."""
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    kube.apply(manifest("PersistentVolumeClaim", "runs", spec=claim), namespace=namespace)
    return lambda **more: User(kube, namespace, write_job(tmp_path, namespace, **more))
