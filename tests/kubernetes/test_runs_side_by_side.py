"""Runs that must not meet: two in one namespace and on one volume, one with the name of the first in another
namespace, all at the same time. Each waits in mid-epoch (jobs/held.py) until all three have been looked at.
"""

from collections.abc import Sequence

import pytest

from clustertrain.errors import EXIT_CLUSTER
from kubernetes.rayjob_runs import CLAIM, HELD, HELD_STEP, RayJobRun
from support.whole_run import same_weights

pytestmark = pytest.mark.timeout(900)

# Lines "URL TOKEN" in, the status of each answer out.
ASK = """
import sys, urllib.error, urllib.request
for line in sys.stdin:
    url, token = line.split()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        print(urllib.request.urlopen(request, timeout=60).status)
    except urllib.error.HTTPError as refused:
        print(refused.code)
"""


@pytest.fixture
def runs(kube, namespace, other_namespace, image, tmp_path):
    """`one` and `two` in a namespace, another `one` in another, in the middle of their training."""
    kube.load(image)
    for each in (namespace, other_namespace):
        kube.make_volume(each, CLAIM)
    made = [
        RayJobRun(kube, where, tmp_path / where, name, image=image, resources={"nodes": 1}, **HELD)
        for where, name in ((namespace, "one"), (namespace, "two"), (other_namespace, "one"))
    ]
    for run in made:  # one after the other: each start has the CPUs to itself
        run.submit().wait_for_step(HELD_STEP)
    return made


@pytest.mark.nightly
def test_runs_of_one_namespace_and_of_one_name_do_not_meet(runs, uninterrupted):
    own_pods = [_assert_objects_of_its_own(run) for run in runs]
    assert len(set().union(*own_pods)) == 9
    _assert_tokens_of_their_own(runs)
    _assert_another_submission_harms_nothing(runs[0])
    for run in runs:
        run.go_on()
    for run, pods in zip(runs, own_pods, strict=True):
        run.wait()
        assert (run.result.state, run.result.step, run.result.restarts) == ("done", 21, 0)
        assert same_weights(run.weights(), uninterrupted(2))
        _assert_storage_of_its_own(run, pods)
    volumes = [sorted(path.name for path in (run.volume / "runs").iterdir()) for run in runs]
    assert volumes == [["one", "two"], ["one", "two"], ["one"]]


def _assert_objects_of_its_own(run: RayJobRun) -> set[str]:
    """Everything that bears the run's label is of this RayJob; returns its pods."""
    kube, where, selector = run.cluster, run.namespace, f"clustertrain.io/run={run.name}"
    cluster = run.status()["rayClusterName"]
    pods = kube.items("pods", where, selector)
    roles = {pod["metadata"]["name"]: pod["metadata"]["labels"]["clustertrain.io/role"] for pod in pods}
    assert sorted(roles.values()) == ["head", "submitter", "worker"]
    of_ray = [pod for pod in pods if roles[pod["metadata"]["name"]] != "submitter"]
    assert {pod["metadata"]["labels"]["ray.io/cluster"] for pod in of_ray} == {cluster}
    (config,) = kube.items("configmaps", where, selector)
    mounted = [
        volume["configMap"]["name"]
        for pod in of_ray
        for volume in pod["spec"]["volumes"]
        if "configMap" in volume
    ]
    assert mounted == [config["metadata"]["name"]] * 2
    return set(roles)


def _assert_tokens_of_their_own(runs: Sequence[RayJobRun]) -> None:
    """Each head takes the token of its own cluster, and no other."""
    tokens = [_token(run) for run in runs]
    assert len(set(tokens)) == len(runs)
    heads = [run.cluster.get("pods", run.pods("head")[0], run.namespace)["status"]["podIP"] for run in runs]
    asked = [f"http://{head}:8265/api/jobs/ {token}\n" for head in heads for token in tokens]
    somewhere = runs[1]
    pod, where = somewhere.pods("worker")[0], somewhere.namespace
    command = ("exec", "--stdin", pod, "--container=ray-worker", "--", "python", "-c", ASK)
    done = somewhere.cluster.kubectl(*command, namespace=where, input="".join(asked))
    answers = list(map(int, done.stdout.split()))
    assert answers == [200 if head == token else 403 for head in range(3) for token in range(3)]


def _token(run: RayJobRun) -> str:
    """What all pods of a run have in their environment."""
    containers = {"head": "ray-head", "worker": "ray-worker", "submitter": "ray-job-submitter"}
    print_it = ("--", "printenv", "RAY_AUTH_TOKEN")
    (token,) = {
        run.cluster.kubectl("exec", pod, f"--container={name}", *print_it, namespace=run.namespace).stdout
        for role, name in containers.items()
        for pod in run.pods(role)
    }
    return token.strip()


def _assert_another_submission_harms_nothing(run: RayJobRun) -> None:
    """`submit` refuses, and what `kubectl apply` is given once more starts nothing."""
    before = _identity(run)
    refused = run.command("submit", "--to", "kubernetes", str(run.job_file), code=EXIT_CLUSTER)
    assert f"RayJob {run.name} exists already: Running, RUNNING." in refused.stderr
    rendered = run.command("render", "--to", "kubernetes", str(run.job_file))
    run.cluster.kubectl("apply", "--filename=-", namespace=run.namespace, input=rendered.stdout)
    assert _identity(run) == before


def _identity(run: RayJobRun) -> tuple[str, ...]:
    found = run.cluster.get("rayjobs", run.name, run.namespace)
    status = found["status"]
    return found["metadata"]["uid"], status["rayClusterName"], status["jobId"], status["jobStatus"]


def _assert_storage_of_its_own(run: RayJobRun, pods: set[str]) -> None:
    (attempt,) = run.run_dir.attempts()
    claim = attempt.claim.read()
    assert (claim.allocation.place, claim.allocation.job_id) == ({"namespace": run.namespace}, run.name)
    assert claim.host.partition("/")[0] in pods
    logs = {path.parent.name for path in attempt.path.glob("logs/*/rank-*.log")}
    assert logs <= pods and len(logs) == 1
