"""Streams of JSON lines: events (what happened) and metrics (what was measured).

A stream has one writing process. A reader may read it at any time; it reads a last line
without a newline later. Every line has `kind` and `time` (seconds since 1970).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter
from typing_extensions import TypedDict

from clustertrain.record_file import json_object
from clustertrain.run.folder import RunDir
from clustertrain.run.records import Failure
from clustertrain.run.streams.streams import Tail
from clustertrain.units import LARGEST_INTEGER, LATEST_S


class Kind(NamedTuple):
    """A kind of record: what it says, and its fields beside `kind` and `time`."""

    meaning: str
    fields: str


KINDS = {
    "stage": Kind(
        "A data set is fetched: `phase` is wait, download, extract or ready. `problem` is why a try failed, "
        "before the next one.",
        "name, phase, bytes, total_bytes, seconds, problem",
    ),
    "ray_started": Kind("Ray runs at `address`.", "seconds, address"),
    "group_started": Kind(
        "The workers started. `ranks` are objects with rank, host, pid, gpus (uuid, pci, name) and "
        "clock_ahead_s, how far its clock was ahead of the driver's; beside them, of rank 0.",
        "restart, world_size, clock_ahead_s, ranks",
    ),
    "resized": Kind("The run continues with `world_size` workers of at most `of`.", "world_size, of, text"),
    "resumed": Kind(
        "The workers continue at a checkpoint, or at step 0 if `checkpoint` is null; with `in_memory` at the "
        "last step, which was in the memory of the nodes.",
        "restart, step, epoch, checkpoint, world_size, redone_steps, in_memory",
    ),
    "fallback": Kind("A damaged checkpoint is passed over.", "checkpoint, why"),
    "worker_died": Kind("A worker failed.", ", ".join(f.name for f in fields(Failure))),
    "restarting": Kind(
        "The workers start again, `restart` of at most `of` times; with `with_driver` the driver as well.",
        "restart, of, step, text, of_script, with_driver",
    ),
    "checkpoint": Kind(
        "A checkpoint is complete. The training waited `blocking_s`, the write took `write_s`.",
        "step, name, bytes, blocking_s, write_s, reason",
    ),
    "stop_requested": Kind("The run is asked to save and end.", "cause, of_script"),
    "warning": Kind("Something is wrong, and the run continues.", "text"),
    "note": Kind(
        "A remark; one of the training loop has its position. `profile` is where the one of rank 0 is.",
        "text, step, epoch, profile",
    ),
    "watchdog": Kind("A rank made no step for too long, and is ended.", "text, rank"),
    "samples": Kind(
        "A rank of a drill has used these samples in a pass of a step: `ids` is a digest.",
        "rank, step, epoch, of_pass, ids",
    ),
    "fault": Kind("A drill strikes the run here.", "what, rank, step"),
    "transport": Kind(
        "How NCCL connects the GPUs of a node.",
        "host, text, network, devices, within, reaches_others, gpu_direct",
    ),
    "train": Kind(
        "Metrics of the training steps since the last such record, and what else was measured.",
        "step, epoch, loss, lr, samples_per_s, data_wait_s, compute_s, total_steps, epoch_progress",
    ),
    "eval": Kind("Metrics of an evaluation by their names, and what else was measured.", "step, epoch, loss"),
}
"""The kinds of records: events, and the metrics `train` and `eval`."""


def read_events(run: RunDir, key: str) -> list[dict[str, Any]]:
    """All complete lines of a stream, or empty if there is no stream."""
    return list(new_records(Tail(run, key)))


def new_records(tail: Tail) -> Iterator[dict[str, Any]]:
    """The records of the lines that were added to a stream since the last call."""
    for line in tail.new_lines():
        yield from _parsed(line)


def _parsed(line: bytes) -> Iterator[dict[str, Any]]:
    """The record of a line, or none if a full disk cut the line short, or it is another record. The lines
    around it are still read."""
    try:
        if b"\\ud" in line:  # half of a surrogate pair is valid JSON, but cannot be encoded
            line = json.dumps(json_object(line), ensure_ascii=False).encode(errors="replace")
        value = _RECORD.validate_json(line, strict=True)
    except ValueError:
        return
    if any(isinstance(each, int) and abs(each) > LARGEST_INTEGER for each in value.values()):
        return
    if value.get(_NEEDED.get(value["kind"], "kind")) is not None:
        yield value


_NEEDED = {"stage": "phase", "train": "step", "eval": "step"}
"""The field without which a record of a kind means nothing."""


class _Kind(TypedDict):
    kind: str
    time: Annotated[FiniteFloat, Field(ge=0, le=LATEST_S)]


class _Used(_Kind, total=False):
    """The fields that readers use. Other programs may have written to the file."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    step: int | None
    epoch: int | None
    restart: int | None
    world_size: int | None
    redone_steps: int | None
    bytes: int | None
    total_bytes: int | None
    seconds: FiniteFloat
    blocking_s: FiniteFloat
    write_s: FiniteFloat
    name: str | None
    phase: str | None
    text: str | None


_RECORD: TypeAdapter[Any] = TypeAdapter(_Used)
