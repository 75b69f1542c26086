"""RayJobs whose storage is on S3: a server in the cluster, which the machine that submits does not reach.

No pod of a run has a volume: what is there when all of them are gone was sent. The rendered NetworkPolicies
are enforced by the fixture.
"""

import time

import pytest

from clusters.kube_s3 import BUCKET, ENDPOINT, SECRET, s3_server
from clustertrain.checkpoints.manifest import names
from clustertrain.checkpoints.read import verify
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.streams.history import AttemptFollower, curve
from clustertrain.run_files.streams.streams import Tail
from kubernetes.rayjob_runs import PATIENCE_S, RayJobRun
from support.cluster_jobs import DIGITS, slow
from support.whole_run import same_weights

PREFIX = "runs"
pytestmark = [pytest.mark.timeout(900), pytest.mark.s3, pytest.mark.nightly]


class RunOnS3(RayJobRun):
    def __init__(self, bucket, *arguments, **sections) -> None:
        storage = {"uri": f"s3://{BUCKET}/{PREFIX}", "endpoint": ENDPOINT, "region": "us-east-1"}
        section = {"secrets": [SECRET]}
        super().__init__(*arguments, storage=storage, kubernetes=section, **sections)
        self.bucket = bucket

    @property
    def run_dir(self) -> RunDir:
        return RunDir.newest(self.bucket.location(PREFIX), self.name)

    def wait_for_step(self, step: int) -> None:
        """Until the pod of rank 0 has sent this step of the newest attempt."""
        self.wait_for_attempt(self.attempts_before + 1)
        follower, ends = AttemptFollower(self.attempt), time.monotonic() + PATIENCE_S
        while not any(each["kind"] == "train" and each["step"] >= step for each in follower.new()):
            assert time.monotonic() < ends and self._has_ended() is None, self.story()
            time.sleep(1.0)

    def hosts(self) -> list[dict[int, str]]:
        """The pod of each rank, for each start of the group."""
        started = [event for event in self.events if event["kind"] == "group_started"]
        return [{place["rank"]: place["host"] for place in event["ranks"]} for event in started]

    def printed(self, host: str, rank: int) -> str:
        """What was sent of a rank's log."""
        key = f"{self.attempt.key}/logs/{host}/rank-{rank}.log"
        return b"".join(Tail(self.run_dir, key).new()).decode()

    def logged_steps(self) -> list[int]:
        """Of the curve."""
        return [each["step"] for each in curve(self.run_dir) if each["kind"] == "train"]


@pytest.fixture
def make(kube, namespace, image, tmp_path, aws_environment):
    kube.load(image)
    with s3_server(kube, namespace, image) as bucket, kube.network_policies(namespace):

        def make_run(name, **sections):
            return RunOnS3(bucket, kube, namespace, tmp_path, name, image=image, **sections)

        yield make_run


def test_a_rayjob_leaves_all_of_its_run_on_s3_and_nothing_else(make, kube):
    sections = {
        **DIGITS,
        "train": {**DIGITS["train"], "eval_every": {"epochs": 3}, "log_every": 5},
        "checkpoint": {"every": {"epochs": 3}, "keep_last": 2},
        "env": {"KEY": "${AWS_ACCESS_KEY_ID}"},  # of the Secret: without a value the run would not start
    }
    run = make("digits", **sections)
    run.submit().wait(within_s=400)
    result = run.result
    assert (result.state, result.world_size) == ("done", 2)
    assert result.metrics["accuracy"] >= 0.97
    assert run.status()["jobStatus"] == "SUCCEEDED"
    run.wait_until_the_cluster_is_gone()

    shelf = run.run_dir.checkpoints
    assert [str(name) for name in names(shelf)][-1] == result.checkpoint
    assert all(verify(shelf, name) for name in names(shelf))
    assert run.bucket.uploads() == []
    (hosts,) = run.hosts()
    assert all("restart 0 begins" in run.printed(hosts[rank], rank) for rank in (0, 1))
    assert run.logged_steps() == list(range(5, result.step + 1, 5))
    assert run.run_dir.store.list(run.run_dir.tensorboard_key)
    evaluated = [each for each in curve(run.run_dir) if each["kind"] == "eval"]
    assert evaluated[-1]["accuracy"] == result.metrics["accuracy"]

    kube.delete("rayjobs", run.name, run.namespace)
    kube.wait_for(lambda: pods(kube, run.namespace) == ["s3"], 240, "a pod of the run is left")
    asked = {words: run.command(*words.split(), "--to", "kubernetes", str(run.job_file)) for words in ASKED}
    for words, stored in ASKED.items():
        assert stored in asked[words].stdout, asked[words].stderr


ASKED = {"status": "done (finished)", "logs": "2 workers started", "logs --rank=1": "restart 0 begins"}


def pods(kube, namespace):
    return [pod["metadata"]["name"] for pod in kube.items("pods", namespace)]


def test_a_workers_pod_that_is_killed_leaves_its_log_and_the_weights_are_the_same(make, kube, uninterrupted):
    run = make("bereft", **slow(2)).submit()
    run.wait_for_step(6)
    (hosts,) = run.hosts()
    kube.delete("pods", hosts[1], run.namespace, grace_s=0)
    run.wait(within_s=400)
    assert (run.result.state, run.result.step) == ("done", 21)
    assert run.result.restarts >= 1
    assert len(run.run_dir.attempts()) == 1
    assert same_weights(run.weights(), uninterrupted(2))
    assert "restart 0 begins" in run.printed(hosts[1], 1)
    assert hosts[1] not in run.hosts()[-1].values()
    assert run.logged_steps() == list(range(1, 22))
