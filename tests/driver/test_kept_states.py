"""From which state in the memory of the nodes a start resumes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.driver import backend
from clustertrain.worker.last_step import KeptState, newest_usable

STATE = KeptState(CheckpointName(7, 1, 0), 14, 1, 4, 5, (False, False), frozenset({0, 1}))


def workers(*nodes):
    """One for each rank of the nodes; a node is its ranks and the states that it has."""
    return [
        SimpleNamespace(
            distributed_context=SimpleNamespace(world_rank=rank, node_rank=number, local_rank=local),
            execute_async=lambda function, attempt, states=states: states,
        )
        for number, (ranks, states) in enumerate(nodes)
        for local, rank in enumerate(ranks)
    ]


@pytest.mark.parametrize(
    ("nodes", "is_usable"),
    [
        ([([0, 1], [STATE])], True),
        ([([0, 1, 2], [STATE])], False),  # the own part of rank 2 is missing
        ([([0, 1], [STATE]), ([2], [replace(STATE, ranks=frozenset({2}))])], True),
        ([([0, 1], [STATE]), ([2], [])], False),  # all ranks of that node had died
        ([([0, 2], [STATE]), ([1], [replace(STATE, ranks=frozenset({2}))])], False),  # on other nodes now
        ([([0, 1], [STATE]), ([2], [replace(STATE, mark=15, ranks=frozenset({2}))])], False),
    ],
)
def test_every_node_needs_the_state_and_the_own_parts_of_its_ranks(monkeypatch, nodes, is_usable):
    monkeypatch.setattr(backend.ray, "get", lambda answers, timeout: answers)
    assert backend._kept_in_memory(1, workers(*nodes)) == ({STATE} if is_usable else set())


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
