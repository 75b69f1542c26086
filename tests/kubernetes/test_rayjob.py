"""RayJobs on a real Kubernetes with the real operator: what they compute, what they outlive, what is left."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clustertrain.errors import EXIT_STOPPED
from clustertrain.launchers.kubernetes.render.paths import LEAVE_FILE
from kubernetes.rayjob_runs import CLAIM
from support.cluster_jobs import slow
from support.whole_run import FAULTY, same_weights

CHECKOUT = Path(__file__).parents[2]
IMAGE = "localhost/clustertrain:dev"  # which k8s/digits.yaml names
pytestmark = pytest.mark.timeout(900)
BEFORE_RAYS_DRAIN_S = 25  # which would keep every pod for 30 s after SIGTERM


@pytest.mark.nightly  # in CI: the file in test_k8s_folder.py; test_kubernetes_status.py trains the same job
def test_the_file_of_the_repository_is_applied_and_trained_and_a_job_file_finds_the_run(
    make, kube, namespace, image
):
    run = make("digits")  # which names the same run
    kube.load(image, IMAGE)
    kube.kubectl("apply", f"--filename={CHECKOUT / 'k8s' / 'rayjob-digits.yaml'}", namespace=namespace)
    run.wait()
    assert (run.result.state, run.result.world_size) == ("done", 2)
    assert run.result.metrics["accuracy"] >= 0.97
    assert run.result.checkpoint is not None
    assert run.status()["jobStatus"] == "SUCCEEDED"
    of_run = "clustertrain.io/run=digits,clustertrain.io/role="
    kube.wait_until_gone("pods", namespace, 60, selector=f"{of_run}worker")
    assert not kube.items("rayclusters", namespace)
    job_file = (str(CHECKOUT / "k8s" / "digits.yaml"), "--set", f"kubernetes.namespace={namespace}")
    model = run.folder / "model.safetensors"
    for command in ("status", "logs", "ckpt ls", f"ckpt export --output {model}"):
        run.command(*command.split(), "--to", "kubernetes", *job_file, code=0)
    assert model.stat().st_size > 0
    (head,) = kube.items("pods", namespace, f"{of_run}head")
    kube.execute(namespace, head["metadata"]["name"], "touch", LEAVE_FILE)


@pytest.mark.faults
@pytest.mark.timeout(1500)
def test_after_the_loss_of_a_rank_and_then_of_a_pod_the_weights_are_the_same(make, kube, uninterrupted):
    """A rank that is killed continues from the memory of its pod; a worker's pod that is deleted ends as soon
    as it has saved, and another takes its place. On a busy machine that one starts several times, because Ray
    gives up after 30 s."""
    struck = {"fault": "kill", "rank": 1, "at_call": 6, "marker": f"/mnt/{CLAIM}/struck", "step_s": 1.0}
    saving = {"every": {"epochs": 1}, "memory_every": 1}
    run = make("bereft", **{**FAULTY, "args": struck, "checkpoint": saving}).submit()
    run.wait_for_start(1)
    run.wait_for_step(5)
    gone = run.pods("worker")[0]
    kube.delete("pods", gone, run.namespace)
    kube.wait_until_gone("pods", run.namespace, BEFORE_RAYS_DRAIN_S, name=gone)
    run.wait(within_s=900)
    assert (run.result.state, run.result.step, run.result.restarts) == ("done", 21, 2)
    assert len(run.run_dir.attempts()) == 1
    resumed = [event for event in run.events if event["kind"] == "resumed"]
    assert resumed[0]["in_memory"] and resumed[0]["step"] + resumed[0]["redone_steps"] == 3, run.events
    assert resumed[1]["redone_steps"] <= 2, "the steps of 1 s between the save and the end of the pod"
    hosts = [{rank["host"] for rank in e["ranks"]} for e in run.events if e["kind"] == "group_started"]
    assert [gone in each for each in hosts] == [True, True, False]
    assert same_weights(run.weights(), uninterrupted(2))


# In CI a killed rank and a lost worker (above); whole/test_endings.py kills the driver.
@pytest.mark.nightly
@pytest.mark.parametrize("end", ["deleted", "killed"])
def test_a_head_that_is_lost_comes_back_and_the_run_resumes(make, kube, uninterrupted, end):
    run = make("headless", **slow(2)).submit()
    run.wait_for_step(6)
    head = run.pods("head")[0]
    if end == "deleted":
        kube.delete("pods", head, run.namespace)
    else:  # all that runs in it, at once
        kube.execute(run.namespace, head, "sh", "-c", "kill -9 -1", check=False)
    run.wait(within_s=500)
    first, second = run.run_dir.attempts()
    ended = first.result.read()
    assert (ended and ended.state) == ("preempted" if end == "deleted" else None)
    assert second.result.read().state == "done"
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.nightly  # in CI: the head's preStop hook in launchers/kubernetes/test_pod.py
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
