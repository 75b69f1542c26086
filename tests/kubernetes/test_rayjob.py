"""RayJobs on a real Kubernetes with the real operator: what they compute, what they outlive, what is left."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clustertrain.errors import EXIT_STOPPED
from clustertrain.launchers.kubernetes.render.paths import LEAVE_FILE
from kubernetes.rayjob_runs import CLAIM, FAULTY, slow
from kubernetes.watched import bind_role
from support.commands import ran
from support.whole_run import same_weights

CHECKOUT = Path(__file__).parents[2]
IMAGE = "localhost/clustertrain:dev"  # which k8s/digits.yaml names
pytestmark = pytest.mark.timeout(900)
BEFORE_RAYS_DRAIN_S = 25  # which would keep every pod for 30 s after SIGTERM


def applied(kube, namespace):
    """The file of the repository, as it lies there."""
    file = CHECKOUT / "k8s" / "rayjob-digits.yaml"
    kube.kubectl("apply", f"--filename={file}", namespace=namespace)


def submitted(kube, namespace):
    """The job file of a laptop, by somebody with the documented rights."""
    settings = ("JOB=examples/digits/job.yaml", f"IMAGE={IMAGE}", f"VENV={sys.prefix}")
    ran(
        ["make", "submit-k8s", *settings],
        code=0,
        cwd=CHECKOUT,
        env={**os.environ, **kube.environment, "KUBECONFIG": str(bind_role(kube, namespace))},
    )


@pytest.mark.nightly  # in CI: the file in test_k8s_folder.py; test_watching_pods.py trains the same job
@pytest.mark.parametrize("bring", [applied, submitted])
def test_the_example_is_trained_and_leaves_its_storage(make, kube, namespace, image, bring):
    run = make("digits")  # which names the same run
    kube.load(image, IMAGE)
    bring(kube, namespace)
    run.wait()
    assert (run.result.state, run.result.world_size) == ("done", 2)
    assert run.result.metrics["accuracy"] >= 0.97
    assert run.result.checkpoint is not None
    assert run.status()["jobStatus"] == "SUCCEEDED"
    of_run = "clustertrain.io/run=digits,clustertrain.io/role="
    kube.wait_until_gone("pods", namespace, 60, selector=f"{of_run}worker")
    assert not kube.items("rayclusters", namespace)
    if bring is applied:  # a job file of that name and namespace finds it
        job_file = (str(CHECKOUT / "k8s" / "digits.yaml"), "--set", f"kubernetes.namespace={namespace}")
        model = run.folder / "model.safetensors"
        for command in ("status", "logs", "ckpt ls", f"ckpt export --output {model}"):
            run.command(*command.split(), "--to", "kubernetes", *job_file, code=0)
        assert model.stat().st_size > 0
    (head,) = kube.items("pods", namespace, f"{of_run}head")
    kube.execute(namespace, head["metadata"]["name"], "touch", LEAVE_FILE)


@pytest.mark.faults
@pytest.mark.timeout(1500)
def test_a_worker_that_is_deleted_is_replaced_and_the_weights_are_the_same(make, kube, uninterrupted):
    """Its pod ends as soon as it has saved. On a busy machine the new pod starts several times, because Ray
    gives up after 30 s."""
    run = make("bereft", **slow(2)).submit()
    run.wait_for_step(4)
    gone = run.pods("worker")[0]
    kube.delete("pods", gone, run.namespace)
    kube.wait_until_gone("pods", run.namespace, BEFORE_RAYS_DRAIN_S, name=gone)
    run.wait(within_s=900)
    assert (run.result.state, run.result.step, run.result.restarts) == ("done", 21, 1)
    assert len(run.run_dir.attempts()) == 1
    hosts = [{rank["host"] for rank in e["ranks"]} for e in run.events if e["kind"] == "group_started"]
    assert [gone in each for each in hosts] == [True, False]
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.faults
def test_a_rank_that_is_killed_continues_from_the_memory_of_its_pod(make, uninterrupted):
    struck = {"fault": "kill", "rank": 1, "at_call": 14, "marker": f"/mnt/{CLAIM}/struck", "step_s": 0.2}
    saving = {"every": {"epochs": 1}, "memory_every": 1}
    run = make("killed", **{**FAULTY, "args": struck, "checkpoint": saving}).submit()
    run.wait()
    assert (run.result.state, run.result.step, run.result.restarts) == ("done", 21, 1)
    (resumed,) = (event for event in run.events if event["kind"] == "resumed")
    assert resumed["in_memory"] and resumed["step"] + resumed["redone_steps"] == 11, run.events
    assert same_weights(run.weights(), uninterrupted(2))


def deleted(run):
    """It is being deleted."""
    run.cluster.delete("pods", run.pods("head")[0], run.namespace)


def killed(run):
    """All that runs in it, at once."""
    run.cluster.execute(run.namespace, run.pods("head")[0], "sh", "-c", "kill -9 -1", check=False)


@pytest.mark.nightly
@pytest.mark.parametrize(("end", "state"), [(deleted, "preempted"), (killed, None)])
def test_a_head_that_is_lost_comes_back_and_the_run_resumes(make, uninterrupted, end, state):
    run = make("headless", **slow(2)).submit()
    run.wait_for_step(6)
    end(run)
    run.wait(within_s=500)
    first, second = run.run_dir.attempts()
    ended = first.result.read()
    assert (ended and ended.state) == state
    assert second.result.read().state == "done"
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.nightly
def test_a_rayjob_that_is_deleted_saves_first_and_goes_on_when_it_is_submitted_again(
    make, kube, uninterrupted
):
    run = make("deleted", **slow(2))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.command, "submit", "--wait", "--to", "kubernetes", str(run.job_file))
        run.wait_for_attempt(1)
        run.wait_for_step(6)
        kube.delete("rayjobs", run.name, run.namespace)
        kube.wait_until_gone("rayjobs", run.namespace, 120, name=run.name)
        run.wait_until_the_cluster_is_gone()
        ended = run.result
        assert (ended.state, ended.cause, ended.exit_code) == ("cancelled", "cancelled", EXIT_STOPPED)
        assert ended.checkpoint is not None
        done = waiting.result(120)
    assert done.returncode == EXIT_STOPPED, done.stdout + done.stderr
    run.submit().wait(within_s=400)
    resumed = [event for event in run.events if event["kind"] == "resumed"]
    assert resumed[0]["step"] == ended.step
    assert same_weights(run.weights(), uninterrupted(2))
