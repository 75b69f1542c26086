"""What a rank knows of its own return; tests/whole/test_own_loops.py has whole runs."""

from contextlib import suppress
from pathlib import Path

import pytest

from clustertrain.worker import early_return


def returns(at_end):
    for step in range(3):
        if step == 2 and not at_end:
            break
    else:
        return step


def leaves(at_end):
    raise SystemExit(0) if at_end else KeyError


def first_line(function):
    return function.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("function", "at_end", "line"), [(returns, False, 3), (returns, True, 5), (leaves, True, 1)]
)
def test_the_line_from_which_a_function_returned_is_known(function, at_end, line):
    with suppress(SystemExit):
        frames = early_return.frames_of_next_call()
        function(at_end)
    (frame,) = frames
    folder = str(Path(__file__).parent)
    assert early_return.own_line(frame, folder) == f"test_early_return.py:{first_line(function) + line}"


def test_torch_has_what_shows_a_collective_of_nccl():
    assert not early_return._has_active_collective()
