"""A node with a broken GPU is left out by the next starts, if the other nodes have room for the workers."""

import pytest
from test_retry_policy import fails

from clustertrain.driver import elastic_cluster
from clustertrain.driver.ray_cluster import Deadline
from clustertrain.driver.retry_policy import RetryPolicy
from clustertrain.driver.world_size import RayNode, Workers
from clustertrain.job.file import parse_job
from clustertrain.launchers.local.ray import GivenRay, LocalRay
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.streams.events import read_events

JOB = parse_job("name: a\nfunction: m:f\nresources: {workers: [2, 6], gpus_per_worker: 1}\n", "job.yaml")
NODE = {"CPU": 8.0, "GPU": 2.0}


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    """Three nodes with two GPUs each."""
    nodes = [RayNode(name, 1, NODE, NODE, f"id-{name}") for name in "abc"]
    monkeypatch.setattr(elastic_cluster, "alive_nodes", lambda: nodes)
    monkeypatch.setattr(elastic_cluster, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(elastic_cluster, "_is_silent", lambda node: False)


def given_ray():
    return GivenRay("here", JOB.resources, Deadline(30.0, ""), 0.1)


def left_out(count, *nodes):
    return Workers(count, frozenset(f"id-{node}" for node in nodes))


def breaks(attempt, workers, restart, node, *, cluster=None, world_sizes=(2, 4, 6)):
    """A start with these workers whose GPU broke on that node: the line about the next one, and its
    workers."""
    policy = RetryPolicy(AttemptRef.of(attempt), 9, cluster or given_ray(), world_sizes)
    broken = {"host": node, "broken_node": f"id-{node}", "retry_after_s": 0.0}
    workers = fails(attempt, policy, restart, workers=workers, **broken)
    events = [e for e in read_events(attempt.run, attempt.events_key) if e["kind"] == "restarting"]
    return events[-1]["text"].splitlines()[-1], workers


LEAVES_OUT = "The next starts leave {} out: the other nodes have room for the workers."
USES_AGAIN = "The next start uses {} again: the other nodes have no room for the workers."


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


def test_a_fixed_number_of_workers_that_needs_all_nodes_stays_on_them(attempt):
    assert breaks(attempt, left_out(6), 0, "b", world_sizes=(6,)) == (USES_AGAIN.format("b"), left_out(6))
    found = breaks(attempt, left_out(4), 1, "b", world_sizes=(4,))
    assert found == (LEAVES_OUT.format("b"), left_out(4, "b"))


def test_one_machine_is_used_again(attempt):
    local = LocalRay("unused", JOB.resources, Deadline(1.0, ""))
    found = breaks(attempt, Workers(1), 0, "b", cluster=local, world_sizes=(1,))
    assert found == (USES_AGAIN.format("b"), Workers(1))
