"""From which checkpoint a start resumes. A worker calls at once, and its node answers what the test says."""

from types import SimpleNamespace

import pytest
from ray.exceptions import RayError

from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.driver.group import resume
from clustertrain.run_files.streams.events import read_events
from clustertrain.worker.memory_shelf import is_sound, names_on_node


def name(step, restart=0):
    return CheckpointName(step, 1, restart)


@pytest.fixture
def chosen(attempt, monkeypatch):
    """The step of the newest checkpoint, with those in the memory of each node, damaged ones negative."""
    monkeypatch.setattr(resume, "answers", lambda calls, timeout_s: calls)

    def worker(node, steps):
        def call(function, of_attempt, *args):
            assert of_attempt == 1
            if function is names_on_node:
                assert args == ([node], 2)
                return [name(abs(step)) for step in steps]
            assert function is is_sound
            return 3 if args[0].step in steps else None

        context = SimpleNamespace(node_rank=node, world_rank=node, local_rank=0)
        return SimpleNamespace(distributed_context=context, execute_async=call)

    def newest(nodes, restart=1):
        workers = [worker(node, steps) for node, steps in enumerate(nodes)]
        return resume.newest_checkpoint(attempt.restart(restart), workers)

    return newest


@pytest.mark.parametrize(
    ("nodes", "step"),
    [
        ([[10, 20], [10, 20]], 20),
        ([[10, 20], [20, 30]], 20),
        ([[10, 20], [10, -20]], 10),
        ([[10, 20], [30, 40]], None),
        ([[10, 20], []], None),
    ],
)
def test_the_newest_that_is_whole_on_all_nodes_counts(chosen, nodes, step):
    found = chosen(nodes)
    assert (found.name.step if found else None) == step
    assert found is None or (found.in_memory and (found.epoch, found.world_size) == (3, 2))


def test_a_first_start_asks_no_node(chosen):
    assert chosen([[10], [10]], restart=0) is None


def test_one_that_is_older_than_the_storage_does_not_count(chosen, monkeypatch):
    manifest = SimpleNamespace(name=name(20), epoch=1, world_size=2)
    monkeypatch.setattr(resume, "newest_verified", lambda *args: SimpleNamespace(manifest=manifest))
    assert not chosen([[10, 20], [10, 20]]).in_memory
    assert chosen([[20, 30], [20, 30]]).name.step == 30


def test_a_node_that_does_not_answer_costs_only_the_memory(chosen, attempt, monkeypatch):
    def does_not_answer(calls, timeout_s):
        raise RayError("The worker died.")

    monkeypatch.setattr(resume, "answers", does_not_answer)
    assert chosen([[10], [10]]) is None
    (event,) = read_events(attempt.run, attempt.events_key)
    assert "in the memory of the nodes are not used: The worker died." in event["text"]
