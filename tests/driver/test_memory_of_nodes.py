"""From which state in the memory of the nodes a start resumes. A node is a folder, a worker calls at once."""

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import RayError
from torch import nn

from clustertrain import variables
from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.driver import memory_of_nodes
from clustertrain.driver.memory_of_nodes import newest_in_memory
from clustertrain.run.streams.events import read_events
from clustertrain.training.copied_step import CopiedStep
from clustertrain.training.last_step import LastStep
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.step.running_loss import Meter
from clustertrain.worker import last_step
from clustertrain.worker.last_step import KeptState, newest_usable
from clustertrain.worker.restart_plan import RestartPlan

STATE = KeptState(CheckpointName(7, 1, 0), 14, 1, 4, 5, (False, False))


@dataclass
class Node:
    """The memory of a node."""

    folder: object

    def call(self, function, *args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(variables.MEMORY_DIR, str(self.folder))
            return function(*args)

    def worker(self, node_rank, rank, local_rank=0):
        context = SimpleNamespace(node_rank=node_rank, world_rank=rank, local_rank=local_rank)
        return SimpleNamespace(distributed_context=context, execute_async=self.call)

    def states(self):
        return self.call(last_step.kept_on_node, 1).states


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_of_nodes, "answers", lambda calls, timeout_s: calls)
    monkeypatch.setattr(memory_of_nodes, "answer", lambda call, timeout_s: call)
    monkeypatch.setattr(memory_of_nodes, "_PIECE_BYTES", 1000)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir(mode=0o700)
    return [Node(folder) for folder in folders]


@pytest.fixture
def restart(attempt):
    return attempt.restart(1)


def train(node, rank, steps, *, marks_after=0, is_alive, kind=LastStep):
    """Keep the last step of a rank, and save its state if it is alive."""
    rank_info = RankInfo(rank, 0, 2, torch.device("cpu"))
    model, meter = nn.Linear(20, 20), Meter(rank_info, None)
    with torch.no_grad():
        model.weight.fill_(steps)
    rest = {"saved_step": 0, "flushed_step": 0, "between_due": False, "evaluation_due": False}
    rest |= {"epoch": 0, "world_size": 2}
    progress = SaveProgress(steps, 0, 0, 2, {}, "steps")
    kept = kind(model, meter, rank_info, 99, lambda: (progress, {"model": model.state_dict(), **rest}))
    plan = RestartPlan(SimpleNamespace(attempt=1), 0, "", {}, None, False)
    node.call(last_step.keep, plan, rank, kept)
    for step in range(1, steps + 1):
        kept.changes()
        kept.completed(2 * step)
    if marks_after:
        kept.completed(2 * steps + marks_after)
    if is_alive:
        node.call(last_step.save)


def newest(restart, nodes):
    workers = [node.worker(number, rank=number) for number, node in enumerate(nodes)]
    return newest_in_memory(restart, workers, 0, keeps_best=False)


@pytest.mark.parametrize("dead", [0, 1])
def test_a_node_without_a_live_rank_gets_the_state_of_another(nodes, restart, dead):
    for rank, node in enumerate(nodes):
        train(node, rank, 3, is_alive=rank != dead)
    assert not nodes[dead].states()
    state = newest(restart, nodes)
    assert state.name == CheckpointName(3, 1, 0) and len(state.files) == 3
    assert nodes[0].states() == nodes[1].states() == {state}
    plan = RestartPlan(SimpleNamespace(attempt=1), 1, "", {}, str(state.name), False, kept_mark=state.mark)
    found = nodes[dead].call(last_step.restore, plan, dead, 2)
    assert found["model"]["weight"].unique().tolist() == [3]


def test_a_dead_rank_may_be_one_step_behind(nodes, restart):
    train(nodes[0], 0, 4, is_alive=True)
    train(nodes[1], 1, 3, is_alive=False)
    assert newest(restart, nodes) is None
    train(nodes[0], 0, 3, is_alive=True)
    assert newest(restart, nodes).name.step == 3


def test_of_two_states_of_a_step_the_one_that_all_ranks_have_reached_counts(nodes, restart):
    """Rank 0 has evaluated after the step, and rank 1 has not."""
    train(nodes[0], 0, 3, marks_after=1, is_alive=True)
    train(nodes[1], 1, 3, is_alive=True)
    assert newest(restart, nodes).mark == 6
    assert {state.mark for node in nodes for state in node.states()} == {6}, "it replaces the other"


def test_an_interrupted_copy_is_made_again(nodes, restart):
    train(nodes[0], 0, 3, is_alive=True)
    train(nodes[1], 1, 3, is_alive=False)
    name = CheckpointName(3, 1, 0)
    file = f"1.0/{name}/model.pt"
    nodes[1].call(last_step.make_room, {file: 4})
    nodes[1].call(last_step.write_piece, file, b"half")
    state = newest(restart, nodes)
    assert state is not None and nodes[1].states() == {state}


def test_a_rank_that_starts_on_another_node_gets_its_own_part(nodes, restart):
    for rank, node in enumerate(nodes):
        train(node, rank, 3, is_alive=rank == 0)
    state = newest(restart, list(reversed(nodes)))
    plan = RestartPlan(SimpleNamespace(attempt=1), 1, "", {}, str(state.name), False, kept_mark=state.mark)
    for rank, node in enumerate(reversed(nodes)):
        assert node.call(last_step.restore, plan, rank, 2)["mark"] == 6


def test_a_rank_of_fsdp_that_starts_on_another_node_gets_its_state(nodes, restart):
    kind = partial(CopiedStep, every=1, note=print)
    for rank, node in enumerate(nodes):
        train(node, rank, 3 + rank, is_alive=False, kind=kind)
    state = newest(restart, list(reversed(nodes)))
    assert (state.name, state.mark, state.files) == (CheckpointName(3, 1, 0), 6, frozenset())
    plan = RestartPlan(SimpleNamespace(attempt=1), 1, "", {}, str(state.name), False, kept_mark=state.mark)
    for rank, node in enumerate(reversed(nodes)):
        assert (nodes[1 - rank].folder / "1.0" / f"own-{rank}").exists()
        assert node.call(last_step.restore, plan, rank, 2)["model"]["weight"].unique().tolist() == [3 + rank]


def test_a_state_without_the_own_part_of_a_rank_is_not_used(nodes, restart):
    train(nodes[0], 0, 3, is_alive=True)
    assert newest(restart, nodes) is None


def test_a_node_without_room_is_not_filled(nodes, restart, monkeypatch):
    train(nodes[0], 0, 3, is_alive=True)
    train(nodes[1], 1, 3, is_alive=False)
    monkeypatch.setattr(last_step, "_room_bytes", lambda limits: 2000)
    assert newest(restart, nodes) is None


def test_a_node_that_does_not_answer_costs_only_the_memory(nodes, restart, monkeypatch):
    def does_not_answer(answers, timeout):
        raise RayError("The worker died.")

    monkeypatch.setattr(memory_of_nodes, "answers", does_not_answer)
    assert newest(restart, nodes) is None
    attempt = restart.attempt
    (event,) = read_events(attempt.run, attempt.events_key)
    assert "memory of the nodes is not used: The worker died." in event["text"]


@pytest.mark.parametrize(
    ("committed", "world_size", "keeps_best", "step"),
    [
        (0, 4, False, 9),
        (8, 4, False, 9),
        (9, 4, False, None),  # of the same step the storage has more
        (0, 3, False, None),
        (4, 4, True, None),  # the save of step 5 was lost, and might have been the best
        (5, 4, True, 7),  # so was that of step 8
        (8, 4, True, 9),
    ],
)
def test_the_newest_is_used_if_the_storage_has_none_that_is_newer(committed, world_size, keeps_best, step):
    states = [STATE, replace(STATE, name=CheckpointName(9, 1, 0), saved_step=8)]
    found = newest_usable(states, world_size, committed, keeps_best=keeps_best)
    assert (found.name.step if found else None) == step
