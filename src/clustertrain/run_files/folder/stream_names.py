"""Which files of an attempt are streams, by their names."""

from __future__ import annotations

import re

TENSORBOARD = "tensorboard"
STREAMS = ("*.jsonl", "logs/*.log", "logs/*/*.log")
"""The files in the folder of an attempt that grow, as patterns of Path.glob."""
WHOLE_FILES = (f"{TENSORBOARD}/*", "restarts/*/reached", "restarts/*/*/rank-*")
"""The files there that are rewritten in place."""

_EVENTS = re.compile(r"events.*\.jsonl")
_RANK_LOG = re.compile(r"rank-(\d+)\.log")


def is_events_stream(name: str) -> bool:
    """Return whether a file of an attempt's folder contains events."""
    return _EVENTS.fullmatch(name) is not None


def is_stream_of_records(name: str) -> bool:
    """Return whether a file of an attempt's folder contains events or metrics."""
    return name.endswith(".jsonl")


def rank_of_log(name: str) -> int | None:
    """Return the rank of a file in a node's log folder, or None if it is not the log of a rank."""
    match = _RANK_LOG.fullmatch(name)
    return int(match[1]) if match else None
