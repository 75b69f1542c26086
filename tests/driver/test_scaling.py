"""The number of workers of each start of the group, with a clock and nodes of the test's own."""

from types import SimpleNamespace

import pytest
from ray.train import ScalingConfig
from ray.train.v2._internal.execution.scaling_policy import NoopDecision

from clustertrain.driver import elastic_cluster, scaling
from clustertrain.driver.__main__ import _ended_for_resize
from clustertrain.driver.ray_cluster import Deadline
from clustertrain.driver.world_size import RayNode
from clustertrain.errors import ClusterError, RunStopped, StorageError
from clustertrain.job.file import parse_job
from clustertrain.launchers.local.ray import GivenRay
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.records import Outcome, ResumePoint, StopRequest
from clustertrain.run.streams.events import read_events
from sample_records import sample_restart_claim

GPU_NODE = {"CPU": 8.0, "GPU": 4.0}


class Nodes:
    """The nodes of a Ray cluster, each by its address."""

    def __init__(self, monkeypatch):
        self.alive, self.silent = ["a", "b"], []
        monkeypatch.setattr(elastic_cluster, "alive_nodes", self._nodes)
        monkeypatch.setattr(elastic_cluster, "_is_silent", lambda node: node.address in self.silent)

    def _nodes(self):
        return [RayNode(name, 1, GPU_NODE, GPU_NODE, f"id-{name}") for name in self.alive]


@pytest.fixture
def nodes(monkeypatch):
    return Nodes(monkeypatch)


def given_ray(resize_after_s=10.0, start_s=0.1):
    job = parse_job("name: a\nfunction: m:f\nresources: {workers: [2, 8], gpus_per_worker: 1}\n", "job.yaml")
    return GivenRay("here", job.resources, Deadline(start_s + resize_after_s, "of the job"), resize_after_s)


class Policy:
    def __init__(self, attempt, *, grows=True):
        self.now = 100.0
        resources = ScalingConfig(num_workers=8, use_gpu=True)
        self.policy = scaling.ElasticPolicy(
            resources, AttemptRef.of(attempt), given_ray(), (2, 4, 8), grows=grows, clock=lambda: self.now
        )
        self.policy._maybe_send_resource_request = lambda: None  # it needs Ray

    def start(self):
        return self.policy.make_decision_for_non_running_worker_group().num_workers

    def poll(self, after_s, workers):
        self.now += after_s
        group = SimpleNamespace(num_workers=workers)
        assert isinstance(self.policy.make_decision_for_running_worker_group(group, None), NoopDecision)


def started(attempt, number, workers):
    restart = attempt.restart(number)
    restart.claim.create(sample_restart_claim())
    restart.plan.write(ResumePoint(None, 0, workers, ("n",) * workers, ("a",) * workers))
    return restart


def test_a_group_starts_with_the_largest_number_that_has_room(attempt, nodes):
    policy = Policy(attempt)
    assert policy.start() == 8
    nodes.alive = ["a"]
    assert policy.start() == 4
    nodes.alive = []
    assert policy.start() == 2, "Ray Train then waits for the smallest, and reports that it does not come"


def test_a_group_grows_once_there_was_room_for_a_while(attempt, nodes):
    nodes.alive = ["a"]
    policy = Policy(attempt)
    restart = started(attempt, 0, policy.start())
    policy.poll(1, 4)
    nodes.alive = ["a", "b"]
    policy.poll(6, 4)
    nodes.alive = ["a"]  # it comes and goes
    policy.poll(6, 4)
    nodes.alive = ["a", "b"]
    policy.poll(6, 4)
    policy.poll(6, 4)
    assert not restart.resize.exists()
    policy.poll(6, 4)
    assert restart.resize.read().world_size == 8
    policy.poll(6, 4)
    texts = [event["text"] for event in read_events(attempt.run, attempt.events_key)]
    assert texts == ["there is room for 8 workers: the present 4 will save, and 8 continue"]


def test_an_unreachable_storage_delays_the_request_and_ends_nothing(attempt, nodes, monkeypatch):
    policy = Policy(attempt)
    restart = started(attempt, 0, 4)
    with monkeypatch.context() as broken:
        broken.setattr(GivenRay, "room", raising(StorageError("S3 does not answer")))
        policy.poll(20, 4)
    policy.poll(6, 4)
    policy.poll(12, 4)
    assert restart.resize.exists()


def raising(error):
    def raise_it(*args):
        raise error

    return raise_it


def test_a_script_and_a_whole_group_do_not_grow(attempt, nodes):
    for policy, workers in ((Policy(attempt, grows=False), 4), (Policy(attempt), 8)):
        restart = started(attempt, 0, workers)
        for _ in range(5):
            policy.poll(10, workers)
        assert not restart.resize.exists()


def test_only_workers_that_returned_for_a_larger_group_are_followed_by_another(attempt, nodes):
    assert not _ended_for_resize(attempt)
    restart = started(attempt, 0, 4)
    restart.outcome.write(Outcome(False, 5))
    assert not _ended_for_resize(attempt)
    restart.resize.write(scaling.ResizeRequest(8))
    assert _ended_for_resize(attempt)
    restart.outcome.write(Outcome(True, 9))
    assert not _ended_for_resize(attempt), "nothing is left to train"
    restart.outcome.write(Outcome(False, 5))
    attempt.stop.write(StopRequest("user"))
    assert not _ended_for_resize(attempt)


def test_missing_nodes_are_waited_for_before_fewer_workers_start(attempt, nodes, monkeypatch):
    monkeypatch.setattr(elastic_cluster, "_LOOK_EVERY_S", 0.05)
    given_ray(0.3).wait_for_workers(attempt, (2, 4, 8))
    assert read_events(attempt.run, attempt.events_key) == [], "there is room for all"
    nodes.alive, nodes.silent = ["a", "b"], ["b"]
    with pytest.raises(ClusterError, match=r"room for 8 workers after 0\.2 s \(of the job\)"):
        given_ray(0.1).wait_for_workers(attempt, (2, 4, 8))  # Ray has not noticed that b is lost
    nodes.alive, nodes.silent = ["a"], []
    given_ray(0.3, start_s=5.0).wait_for_workers(attempt, (2, 4, 8))
    *_, note = read_events(attempt.run, attempt.events_key)
    assert note["text"].startswith("waiting for nodes: there is room for 4 of 8 workers; after 0.3 s")
    nodes.alive = []
    with pytest.raises(ClusterError, match=r"room for 0 workers after .*, and the job needs at least 2"):
        given_ray(0.1).wait_for_workers(attempt, (2, 4, 8))
    attempt.stop.write(StopRequest("user"))
    with pytest.raises(RunStopped):
        given_ray(60.0).wait_for_workers(attempt, (2, 4, 8))
