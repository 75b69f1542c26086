"""Runs that can never start: status names the cause while they wait, and each ends by its own deadline.

All of them wait at once.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from clusters.kube_api import manifest
from clusters.kube_client import Kubernetes
from clustertrain.launchers.kubernetes.observed.pods import seconds
from kubernetes.cluster_user import User, write_job

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 45
LATE_S = 20  # the operator looks every 3 s, on a busy machine
TTL_S = 3
WITHIN_START = "its pods did not start within kubernetes.start_deadline"
START = {"start_deadline": f"{DEADLINE_S}s"}


@dataclass(frozen=True)
class Never:
    """A run that cannot start: what status says `early`, and first of all at the `end`."""

    early: str
    limit: dict
    end: str = f"failed {WITHIN_START}"
    section: dict = field(default_factory=dict)
    job: dict = field(default_factory=dict)


NEVER = {
    "image": Never(
        "registry.invalid/trainer:1",
        START,
        job={"image": "registry.invalid/trainer:1"},
        section={"pull_policy": "Always"},
    ),
    "huge": Never(
        "FailedScheduling: 0/1 nodes are available: 1 Insufficient cpu",
        {"deadline": f"{DEADLINE_S}s"},
        end="lost reached kubernetes.deadline",
        section={"head": {"cpus": 512}},
    ),
    "secret": Never(
        'Failed: Error: secret "aws" not found',
        START,
        section={"secrets": ["aws"]},
    ),
    "claim": Never(
        "unbound immediate PersistentVolumeClaims",
        START,
        section={"volumes": [{"mount": "/mnt/runs", "claim": "never", "size": "1Gi"}]},
    ),
    "quota": Never("exceeded quota: small", START),
}


@pytest.fixture
def user_of(kube: Kubernetes, namespace: str, tmp_path):
    """user_of(name) has the job of that name in NEVER."""
    kube.make_volume(namespace, "runs")
    small = kube.make_namespace()
    quota = manifest("ResourceQuota", "small", spec={"hard": {"requests.memory": "16Mi"}})
    kube.apply(quota, namespace=small)

    def user(name):
        never, where = NEVER[name], small if name == "quota" else namespace
        section = {"ttl": f"{TTL_S}s", **never.limit, **never.section}
        return User(kube, where, write_job(tmp_path, where, name, kubernetes=section, **never.job))

    yield user
    kube.delete_namespace(small)


def first_row(user):
    """What status says first: what the run is, and why."""
    return " ".join(user.cause().split(maxsplit=1))


def says_why_and_ends(user):
    """From its submission to its end."""
    never = NEVER[user.name]
    user.apply()
    user.wait_for_status(never.early, DEADLINE_S - 10)
    assert first_row(user).startswith("waiting ")
    assert user.name in user("ls").stdout
    otherwise = f"{user.name}: no reason in its logs"
    user.kube.wait_for(lambda: never.early in user("logs").stdout, DEADLINE_S, otherwise, poll_s=3)

    user.kube.watch("rayjobs", user.namespace, have_failed, 180, f"{user.name} does not end", name=user.name)
    ended = user.kube.get("rayjobs", user.name, user.namespace)
    times = {**ended["metadata"], **ended["status"]}
    created, start, end = (seconds(times[each]) for each in ("creationTimestamp", "startTime", "endTime"))
    assert DEADLINE_S <= end - created <= DEADLINE_S + LATE_S
    assert DEADLINE_S <= end - start <= DEADLINE_S + LATE_S
    assert ended["status"]["failed"] == 1
    assert first_row(user).startswith(never.end)
    for left in ("rayclusters", "pods"):
        user.kube.wait_until_gone(left, user.namespace, 180, selector=f"clustertrain.io/run={user.name}")


def have_failed(rayjobs):
    return all(each["status"].get("jobDeploymentStatus") == "Failed" for each in rayjobs)


# In CI: test_kubernetes_status.py has the words of the others, and each of the two deadlines has a run here.
OTHERS = pytest.param(("secret", "claim", "quota"), marks=pytest.mark.nightly)


@pytest.mark.parametrize("names", [("image", "huge"), OTHERS], ids="-".join)
def test_what_can_never_start_says_why_and_ends_by_its_deadline(user_of, names):
    with ThreadPoolExecutor(len(names)) as pool:
        for done in [pool.submit(says_why_and_ends, user_of(name)) for name in names]:
            done.result()
