"""Streams of JSON lines: events (what happened) and metrics (what was measured).

A stream has one writing process. A reader may read it at any time; it reads a last line
without a newline later. Every line has `kind` and `time` (seconds since 1970).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat

from clustertrain.record_file import json_object, typed
from clustertrain.run.folder import RunDir
from clustertrain.run.streams.streams import Tail

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
    """All complete lines of a stream, or empty if there is no stream."""
    return list(Follower(run, key).new())


class Follower:
    """Reads the lines that were added to a stream since the last call."""

    def __init__(self, run: RunDir, key: str) -> None:
        self._tail = Tail(run, key)

    def new(self) -> Iterator[dict[str, Any]]:
        for line in self._tail.new_lines():
            yield from _parsed(line)


def _parsed(line: bytes) -> Iterator[dict[str, Any]]:
    """The record of a line, or none if a full disk cut the line short, or it is another record. The lines
    around it are still read."""
    try:
        value = json_object(line)
        typed(_Used, value)
    except ValueError:
        return
    if value.get(_NEEDED.get(value["kind"], "kind")) is not None:
        yield value


_NEEDED = {"stage": "phase", "train": "step", "eval": "step"}
"""The field without which a record of a kind means nothing."""


@dataclass(frozen=True)
class _Used:
    """The fields that readers use. Other programs may have written to the file."""

    kind: str
    time: FiniteFloat
    step: int | None = None
    epoch: int | None = None
    restart: int | None = None
    world_size: int | None = None
    redone_steps: int | None = None
    bytes: int | None = None
    total_bytes: int | None = None
    seconds: FiniteFloat = 0.0
    blocking_s: FiniteFloat = 0.0
    write_s: FiniteFloat = 0.0
    name: str | None = None
    phase: str | None = None
    text: str | None = None
