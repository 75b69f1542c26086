"""What a file of an attempt's folder contains, by its name."""

from __future__ import annotations

import re

_EVENTS = re.compile(r"events.*\.jsonl")
_RANK_LOG = re.compile(r"rank-(\d+)\.log")


def is_events_stream(name: str) -> bool:
    """Whether a file of an attempt's folder contains events."""
    return _EVENTS.fullmatch(name) is not None


def is_stream_of_records(name: str) -> bool:
    """Whether a file of an attempt's folder contains events or metrics."""
    return name.endswith(".jsonl")


def rank_of_log(name: str) -> int | None:
    """The rank of a file in a node's log folder, or None if it is not the log of a rank."""
    match = _RANK_LOG.fullmatch(name)
    return int(match[1]) if match else None
