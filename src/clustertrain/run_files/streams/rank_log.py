"""The lines of clustertrain in the log of a rank.

All starts of an attempt write to the same log:

clustertrain: restart 0 begins
(what Ray and torch write while the worker starts)
clustertrain: output begins
(what the user's code prints)
clustertrain: output ends
(the traceback of the exception that ended it)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

OUTPUT_BEGINS = "clustertrain: output begins"
OUTPUT_ENDS = "clustertrain: output ends"
# Of a rank that hangs; the stacks of its threads follow, and then it is killed.
_STACKS = r"no progress in phase .*|.*; the stacks of all threads follow"
# Before such a line there may be one that the user's code has not ended: a progress bar.
_OWN_LINE = re.compile(
    rf"(?P<before>.*?)clustertrain: (?P<what>restart \d+ begins|output (?:begins|ends)|{_STACKS})"
)


def start_line(restart: int) -> str:
    """Return the first line of a start in the log of a rank."""
    return f"clustertrain: restart {restart} begins"


def where_start_begins(text: str, restart: int) -> int:
    """Return the position after the first line of a start in the end of a log.

    It is the length of the text if the rank ended before it began this start, and 0 if the line comes before
    the text.
    """
    line = start_line(restart)
    if line in text:
        return text.rindex(line) + len(line)
    return len(text) if any(start_line(earlier) in text for earlier in range(restart)) else 0


@contextmanager
def marks_of_output() -> Iterator[None]:
    """Print a line before and after the block, in which the user's code prints to the log of this rank."""
    print(OUTPUT_BEGINS, flush=True)
    try:
        yield
    finally:
        sys.stderr.flush()
        print(OUTPUT_ENDS, flush=True)


def own_line(line: str) -> bool | None:
    """Return whether the user's output follows a line that clustertrain wrote; None for any other line."""
    found = _OWN_LINE.fullmatch(line)
    return None if found is None else found["what"] == "output begins"


def separated(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, with each line of clustertrain separated from the progress bar before it."""
    for line in lines:
        found = _OWN_LINE.fullmatch(line)
        before = found["before"] if found is not None else ""
        if before.strip():
            yield before.rstrip()
        yield line[len(before) :]
