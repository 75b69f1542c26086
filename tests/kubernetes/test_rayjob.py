"""RayJobs on a real Kubernetes with the real operator: what they compute, what they outlive, what is left."""

from pathlib import Path

import pytest

from kubernetes.rayjob_runs import CLAIM, RayJobRun, slow
from whole_run import same_weights

CHECKOUT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def make(kube, namespace, image, tmp_path):
    """Runs in a namespace where Pod Security `restricted` is enforced, with a volume that all pods see."""
    kube.load(image)
    kube.make_volume(namespace, CLAIM)

    def make_run(name, **sections):
        return RayJobRun(kube, namespace, tmp_path, name, image=image, **sections)

    return make_run


def test_a_rayjob_trains_the_job_file_of_every_other_target_and_leaves_its_storage(make):
    digits = CHECKOUT / "examples" / "digits"
    run = make(
        "digits",
        task="digits:Digits",
        args={"lr": 0.002},
        code=str(digits),
        data={"digits": {"uri": str(digits / "digits.tar.gz"), "extract": True}},
        train={"epochs": 15, "batch_size": 32, "seed": 0, "eval_every": {"epochs": 3}},
        checkpoint={
            "every": {"epochs": 3},
            "keep_last": 2,
            "keep_best": {"metric": "accuracy", "mode": "max"},
        },
    )
    run.submit().wait()
    assert (run.result.state, run.result.world_size) == ("done", 2)
    assert run.result.metrics["accuracy"] >= 0.97
    assert run.status()["jobStatus"] == "SUCCEEDED"
    run.wait_until_the_cluster_is_gone()
    assert run.run_dir.checkpoints is not None
    assert run.result.checkpoint is not None


@pytest.mark.faults
def test_a_worker_that_is_deleted_is_replaced_and_the_weights_are_the_same(make, kube, uninterrupted):
    """Ray trains on in a pod that was told to go, until its grace is over: 5 s for the save, and 30."""
    run = make("bereft", **slow(4), failures={"grace": "5s"}).submit()
    run.wait_for_step(6)
    kube.kubectl("delete", "pod", run.pods("worker")[0], "--wait=false", namespace=run.namespace)
    run.wait(within_s=400)
    assert (run.result.state, run.result.step) == ("done", 21)
    assert run.result.restarts >= 1
    assert len(run.run_dir.attempts()) == 1
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.faults
def test_a_head_that_is_deleted_comes_back_and_the_run_resumes(make, kube, uninterrupted):
    run = make("headless", **slow(2)).submit()
    run.wait_for_step(6)
    kube.kubectl("delete", "pod", run.pods("head")[0], "--wait=false", namespace=run.namespace)
    run.wait(within_s=500)
    first, second = run.run_dir.attempts()
    assert first.read("result.json")["state"] == "preempted"
    assert second.read("result.json")["state"] == "done"
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.faults
def test_a_rayjob_that_is_deleted_saves_first_and_goes_on_when_it_is_submitted_again(
    make, kube, uninterrupted
):
    run = make("deleted", **slow(2)).submit()
    run.wait_for_step(6)
    kube.kubectl("delete", "rayjob", run.name, "--timeout=120s", namespace=run.namespace)
    run.wait_until_the_cluster_is_gone()
    ended = run.result
    assert (ended.state, ended.cause) == ("cancelled", "cancelled")
    assert ended.checkpoint is not None
    run.submit().wait(within_s=400)
    resumed = [event for event in run.events if event["kind"] == "resumed"]
    assert resumed[0]["step"] == ended.step
    assert same_weights(run.weights(), uninterrupted(2))
