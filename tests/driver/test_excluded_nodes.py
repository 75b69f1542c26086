"""A node with a broken GPU is left out by the next starts, if the other nodes have room for the workers."""

import pytest
from test_failure_watch import fails

from clustertrain.driver import elastic_cluster
from clustertrain.driver.excluded_nodes import excluded_nodes, node_selector
from clustertrain.driver.ray_cluster import Deadline
from clustertrain.driver.trainer import FailureWatch
from clustertrain.driver.world_size import RayNode
from clustertrain.job.file import parse_job
from clustertrain.launchers.local.ray import GivenRay, LocalRay
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.streams.events import read_events

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


def watch_of(attempt, cluster=None, world_sizes=(2, 4, 6)):
    return FailureWatch(AttemptRef.of(attempt), 9, cluster or given_ray(), world_sizes)


def breaks(attempt, watch, restart, node):
    """A start whose GPU broke on that node, and the line about the next one."""
    fails(attempt, watch, restart, host=node, broken_node=f"id-{node}", retry_after_s=0.0)
    events = [e for e in read_events(attempt.run, attempt.events_key) if e["kind"] == "restarting"]
    return events[-1]["text"].splitlines()[-1]


def selector_of(watch):
    return watch.on_controller_start_worker_group(scaling_config=None, num_workers=2)


def test_the_next_starts_use_the_other_nodes_as_long_as_there_are_enough(attempt):
    watch, cluster = watch_of(attempt), given_ray()
    assert (selector_of(watch), cluster.world_size_now(attempt, (2, 4, 6))) == (None, 6)
    line = breaks(attempt, watch, 0, "b")
    assert line == "The next starts leave b out: the other nodes have room for the workers."
    assert selector_of(watch) == {"ray.io/node-id": "!in(id-b)"}
    assert cluster.world_size_now(attempt, (2, 4, 6)) == 4
    breaks(attempt, watch, 1, "a")
    assert selector_of(watch) == {"ray.io/node-id": "!in(id-a,id-b)"}
    assert cluster.world_size_now(attempt, (2, 4, 6)) == 2
    line = breaks(attempt, watch, 2, "c")
    assert line == "The next start uses c again: the other nodes have no room for the workers."
    assert excluded_nodes(attempt) == {"id-a", "id-b"}


def test_a_later_watch_of_the_same_attempt_knows_them(attempt):
    """The driver makes one for a larger group, which the left-out node does not make possible."""
    breaks(attempt, watch_of(attempt), 0, "b")
    assert selector_of(watch_of(attempt)) == {"ray.io/node-id": "!in(id-b)"}
    assert given_ray().room(attempt) == 4


def test_a_fixed_number_of_workers_that_needs_all_nodes_stays_on_them(attempt):
    watch = watch_of(attempt, world_sizes=(6,))
    assert breaks(attempt, watch, 0, "b").startswith("The next start uses b again: ")
    assert selector_of(watch) is None
    watch = watch_of(attempt, world_sizes=(4,))
    assert breaks(attempt, watch, 1, "b").startswith("The next starts leave b out")


def test_one_machine_is_used_again(attempt):
    watch = watch_of(attempt, LocalRay("unused", JOB.resources, Deadline(1.0, "")), world_sizes=(1,))
    assert breaks(attempt, watch, 0, "b") == (
        "The next start uses b again: the other nodes have no room for the workers."
    )


def test_a_selector_of_nothing_is_none():
    assert node_selector(()) is None
