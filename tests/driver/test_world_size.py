"""How many workers the nodes have room for, and the line about another number: pure functions."""

import pytest

from clustertrain.driver.world_size import RayNode, largest, resize_text, room_on
from clustertrain.run_files.records.claim import ResumePoint


def node(address, resources, free=None):
    return RayNode(address, 1, resources, resources if free is None else free)


WHOLE = node("a", {"CPU": 8.0, "GPU": 4.0})
TAKEN = node("b", {"CPU": 8.0, "GPU": 4.0}, {"CPU": 1.0, "GPU": 1.0})
EACH = {"CPU": 2.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("nodes", "each", "own", "room"),
    [
        ([WHOLE], EACH, (), 4),
        ([WHOLE, TAKEN], EACH, (), 4),
        ([WHOLE, TAKEN], {"GPU": 1.0}, (), 5),
        ([WHOLE, TAKEN], EACH, ("b", "b", "b"), 7),
        ([WHOLE], EACH, ("a",) * 4, 4),  # the free resources are still those from before this start
        ([WHOLE], EACH, ("gone", "gone"), 4),
        ([node("a", {"CPU": 0.3})], {"CPU": 0.1}, (), 3),
        ([node("a", {"memory": 10.0})], {"memory": 4.0, "GPU": 1.0}, (), 0),
        ([node("a", {"CPU": 3.0}), node("b", {"CPU": 3.0})], {"CPU": 2.0}, (), 2),  # no worker on two nodes
        ([], EACH, ("a",), 0),
    ],
)
def test_room_is_counted_on_each_node_with_the_workers_of_the_run(nodes, each, own, room):
    assert room_on(nodes, each, own) == room


@pytest.mark.parametrize(("room", "size"), [(1, None), (2, 2), (3, 2), (7, 4), (8, 8), (99, 8)])
def test_the_largest_allowed_number_of_workers_is_chosen(room, size):
    assert largest((2, 4, 8), room) == size


def plan(*pairs):
    return ResumePoint(None, 0, len(pairs), *(tuple(column) for column in zip(*pairs, strict=True)))


A, B, C = ("n1", "10.0.0.1"), ("n2", "10.0.0.2"), ("n1", "10.0.0.3")


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (None, [A, A, B, B], None),
        (None, [A, A], "2 of 4 workers: there is no room for more"),
        ([A, B], [A, B], None),
        ([A, A, B, B], [A, A], "2 of 4 workers: without n2 (10.0.0.2)"),
        ([A, B, C, C], [A], "1 of 4 workers: without n2 (10.0.0.2), n1 (10.0.0.3)"),
        ([A, A], [A, A, B, B], "4 of 4 workers: with n2 (10.0.0.2)"),
        ([A], [A, A], "2 of 4 workers"),
    ],
)
def test_the_line_about_another_number_of_workers_names_the_nodes(before, now, text):
    earlier = plan(*before) if before is not None else None
    assert resize_text(earlier, plan(*now), 4) == text
