"""The number of workers of each start of the group, and the nodes that are left out because of a broken GPU.

Clock and nodes are the test's own.
"""

import pytest
from test_retry_policy import fails

from clustertrain.driver import elastic_cluster, growth
from clustertrain.driver.growth import Growth, next_larger
from clustertrain.driver.ray_cluster import Deadline
from clustertrain.driver.retry_policy import RetryPolicy
from clustertrain.driver.world_size import RayNode, Workers
from clustertrain.errors import ClusterError, RunStopped, StorageError
from clustertrain.job.file import parse_job
from clustertrain.launchers.local.ray import GivenRay, LocalRay
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.records.claim import ResumePoint
from clustertrain.run_files.records.requests import ResizeRequest, StopRequest
from clustertrain.run_files.records.result import Outcome
from clustertrain.run_files.streams.events import read_events
from support.sample_records import sample_restart_claim

JOB = parse_job("name: a\nfunction: m:f\nresources: {workers: [2, 8], gpus_per_worker: 1}\n", "job.yaml")


class Nodes:
    """The nodes of a Ray cluster, each by its address, with so many GPUs each."""

    def __init__(self, monkeypatch):
        self.alive, self.silent, self.gpus = ["a", "b"], [], 4
        monkeypatch.setattr(elastic_cluster, "alive_nodes", self._nodes)
        monkeypatch.setattr(elastic_cluster, "_is_silent", lambda node: node.address in self.silent)
        monkeypatch.setattr(elastic_cluster, "LOOK_EVERY_S", 0.01)

    def _nodes(self):
        each = {"CPU": 8.0, "GPU": float(self.gpus)}
        return [RayNode(name, 1, each, each, f"id-{name}") for name in self.alive]


@pytest.fixture
def nodes(monkeypatch):
    return Nodes(monkeypatch)


def given_ray(resize_after_s=10.0, start_s=0.1):
    deadline = Deadline(start_s + resize_after_s, "of the job")
    return GivenRay("here", JOB.resources, deadline, resize_after_s)


SIZES = (2, 4, 8)


class Watch:
    """That of a start with so many workers, with a clock of the test's own."""

    def __init__(self, attempt, monkeypatch, workers):
        self._now_s = 100.0
        monkeypatch.setattr(growth.time, "monotonic", lambda: self._now_s)
        self._growth = Growth(AttemptRef.of(attempt), given_ray(), SIZES, Workers(workers))

    def look(self, after_s):
        self._now_s += after_s
        self._growth.look()


def started(attempt, number, workers):
    restart = attempt.restart(number)
    restart.claim.create(sample_restart_claim())
    restart.plan.write(ResumePoint(None, 0, workers, ("n",) * workers, ("a",) * workers))
    return restart


def test_a_start_without_room_has_the_smallest_number(attempt, nodes):
    """Ray Train waits for them."""
    nodes.alive = []
    assert given_ray().workers_now(attempt, SIZES) == Workers(2)


def test_a_failure_is_followed_by_a_start_with_fewer_workers_if_a_node_is_lost(attempt, nodes):
    policy = RetryPolicy(AttemptRef.of(attempt), 9, given_ray(0.1, 9.0), SIZES)
    assert fails(attempt, policy, 0, workers=Workers(8)) == Workers(8)  # all nodes are there
    nodes.alive = ["a"]
    assert fails(attempt, policy, 1, workers=Workers(8)) == Workers(4)


def test_a_group_grows_once_there_was_room_for_a_while(attempt, nodes, monkeypatch):
    nodes.alive = ["a"]
    watch = Watch(attempt, monkeypatch, 4)
    restart = started(attempt, 0, 4)
    watch.look(1)
    nodes.alive = ["a", "b"]
    watch.look(6)
    nodes.alive = ["a"]  # it comes and goes
    watch.look(6)
    nodes.alive = ["a", "b"]
    watch.look(6)
    watch.look(6)
    assert not restart.resize.exists()
    watch.look(6)
    assert restart.resize.read().world_size == 8
    watch.look(6)
    texts = [event["text"] for event in read_events(attempt.run, attempt.events_key)]
    assert texts == ["there is room for 8 workers: the present 4 will save, and 8 continue"]


def test_an_unreachable_storage_delays_the_request_and_ends_nothing(attempt, nodes, monkeypatch):
    watch = Watch(attempt, monkeypatch, 4)
    restart = started(attempt, 0, 4)
    with monkeypatch.context() as broken:
        broken.setattr(GivenRay, "room", raising(StorageError("S3 does not answer")))
        watch.look(20)
    watch.look(6)
    watch.look(12)
    assert restart.resize.exists()


def raising(error):
    def raise_it(*args):
        raise error

    return raise_it


@pytest.mark.parametrize(("of_script", "workers"), [(True, 4), (False, 8)])
def test_a_script_and_a_whole_group_do_not_grow(attempt, nodes, monkeypatch, of_script, workers):
    monkeypatch.setattr(growth, "is_of_script", lambda attempt: of_script)
    watch, restart = Watch(attempt, monkeypatch, workers), started(attempt, 0, workers)
    for _ in range(5):
        watch.look(10)
    assert not restart.resize.exists()


def test_only_workers_that_returned_for_a_larger_group_are_followed_by_another(attempt, nodes):
    before = Workers(4, frozenset({"id-c"}))
    assert next_larger(attempt, before) is None
    restart = started(attempt, 0, 4)
    restart.outcome.write(Outcome(False, 5))
    assert next_larger(attempt, before) is None
    restart.resize.write(ResizeRequest(8))
    assert next_larger(attempt, before) == Workers(8, frozenset({"id-c"}))
    restart.outcome.write(Outcome(True, 9))
    assert next_larger(attempt, before) is None, "nothing is left to train"
    restart.outcome.write(Outcome(False, 5))
    attempt.stop.write(StopRequest("user"))
    assert next_larger(attempt, before) is None


def test_missing_nodes_are_waited_for_before_fewer_workers_start(attempt, nodes):
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


def left_out(count, *nodes):
    return Workers(count, frozenset(f"id-{node}" for node in nodes))


def breaks(attempt, workers, restart, node, *, cluster=None, world_sizes=(2, 4, 6)):
    """A start with these workers whose GPU broke on that node: the line about the next one, and its
    workers."""
    policy = RetryPolicy(AttemptRef.of(attempt), 9, cluster or given_ray(0.1, 30.0), world_sizes)
    broken = {"host": node, "broken_node": f"id-{node}", "retry_after_s": 0.0}
    workers = fails(attempt, policy, restart, workers=workers, **broken)
    events = [e for e in read_events(attempt.run, attempt.events_key) if e["kind"] == "restarting"]
    return events[-1]["text"].splitlines()[-1], workers


LEAVES_OUT = "The next starts leave {} out: the other nodes have room for the workers."
USES_AGAIN = "The next start uses {} again: the other nodes have no room for the workers."


@pytest.fixture
def three_nodes(nodes):
    nodes.alive, nodes.gpus = ["a", "b", "c"], 2


@pytest.mark.usefixtures("three_nodes")
def test_the_next_starts_use_the_other_nodes_as_long_as_there_are_enough(attempt):
    workers = given_ray().workers_now(attempt, (2, 4, 6))
    assert workers == left_out(6)
    line, workers = breaks(attempt, workers, 0, "b")
    assert (line, workers) == (LEAVES_OUT.format("b"), left_out(4, "b"))
    line, workers = breaks(attempt, workers, 1, "a")
    assert (line, workers) == (LEAVES_OUT.format("a"), left_out(2, "a", "b"))
    line, workers = breaks(attempt, workers, 2, "c")
    assert (line, workers) == (USES_AGAIN.format("c"), left_out(2, "a", "b"))
    assert given_ray().room(attempt) == 2


@pytest.mark.usefixtures("three_nodes")
def test_a_fixed_number_of_workers_that_needs_all_nodes_stays_on_them(attempt):
    assert breaks(attempt, left_out(6), 0, "b", world_sizes=(6,)) == (USES_AGAIN.format("b"), left_out(6))
    found = breaks(attempt, left_out(4), 1, "b", world_sizes=(4,))
    assert found == (LEAVES_OUT.format("b"), left_out(4, "b"))


def test_one_machine_is_used_again(attempt):
    local = LocalRay("unused", JOB.resources, Deadline(1.0, ""))
    found = breaks(attempt, Workers(1), 0, "b", cluster=local, world_sizes=(1,))
    assert found == (USES_AGAIN.format("b"), Workers(1))
