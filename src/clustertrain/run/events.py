"""Streams of JSON lines: events (what happened) and metrics (what was measured).

A stream has one writing process. A reader may read it at any time; it reads a last line
without a newline later. Every line has `kind` and `time` (seconds since 1970).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clustertrain.run.folder import RunDir
from clustertrain.run.streams import Tail
from clustertrain.units import LARGEST_INTEGER, LATEST_S

KINDS = {
    "stage": "name, phase, bytes, total_bytes, seconds",
    "ray_started": "seconds, address",
    "group_started": "restart, world_size, cuda, nccl; ranks: rank, host, pid, gpus (node.gpus.Gpu)",
    "resized": "world_size, of, text",
    "resumed": "restart, step, epoch, checkpoint, world_size, redone_steps",
    "fallback": "checkpoint, why",
    "worker_died": "the fields of records.Failure",
    "restarting": "restart, of, of_script, with_driver, and step and text of the failure",
    "checkpoint": "step, name, bytes, blocking_s, write_s, reason",
    "stop_requested": "cause, of_script",
    "warning": "text",
    "note": "text",
    "watchdog": "text, rank",
    "transport": "host, text, and the fields of nccl_transport.Transport",
    "train": "step, epoch, loss, and what else was measured (metrics streams)",
    "eval": "step, epoch, loss, and what else was measured (metrics streams)",
}
"""The kinds of records, with their fields beside `kind` and `time`."""


class EventLog:
    """Appends to a stream; each line is one write, so that lines of one file never mix."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())


def read_events(run: RunDir, key: str) -> list[dict[str, Any]]:
    """All complete lines of a stream; empty if there is no stream."""
    return list(Follower(run, key).new())


class Follower:
    """Reads the lines that were added to a stream since the last call."""

    def __init__(self, run: RunDir, key: str) -> None:
        self._tail = Tail(run, key)

    def new(self) -> Iterator[dict[str, Any]]:
        for line in self._tail.new_lines():
            yield from _parsed(line)


def _parsed(line: bytes) -> Iterator[dict[str, Any]]:
    """The record of a line; none if a full disk cut the line short, or it is no such record. The lines
    around it are still read."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict) and _is_record(value):
        yield value


_WHOLE = ("step", "epoch", "restart", "world_size", "redone_steps", "bytes", "total_bytes")
_NUMBERS = ("seconds", "blocking_s", "write_s")
_TEXTS = ("name", "phase", "text")
_NEEDED = {
    "stage": "phase",
    "train": "step",
    "eval": "step",
}  # the field without which a record means nothing


def _is_record(value: dict[str, Any]) -> bool:
    """Whether the fields that readers use have their types. Other programs may have written to the file."""
    kind = value.get("kind")
    at = value.get("time", -1)
    if not isinstance(kind, str) or not _is_number(at) or not 0 <= at <= LATEST_S:
        return False
    if kind in _NEEDED and value.get(_NEEDED[kind]) is None:
        return False
    given = {key: found for key, found in value.items() if found is not None}
    return (
        all(isinstance(given.get(key, 0), int) and _is_number(given.get(key, 0)) for key in _WHOLE)
        and all(_is_number(value.get(key, 0)) for key in _NUMBERS)
        and all(isinstance(given.get(key, ""), str) for key in _TEXTS)
        and not any(isinstance(found, int) and abs(found) > LARGEST_INTEGER for found in given.values())
    )


def _is_number(value: object) -> bool:
    """Whether it is a finite number of at most 64 bits; bool is none here, although it is an int."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_INTEGER
