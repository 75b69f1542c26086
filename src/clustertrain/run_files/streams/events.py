"""Streams of JSON lines: events (what happened) and metrics (what was measured).

A stream has one writing process. A reader may read it at any time; it reads a last line
without a newline later. Every line has `kind` and `time` (seconds since 1970).
docs/reference/json.md lists the kinds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter
from typing_extensions import TypedDict

from clustertrain.node.units import LARGEST_INTEGER, LATEST_S
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.streams.streams import Tail
from clustertrain.storage.record_file import json_object

Record: TypeAlias = dict[str, Any]
"""A line of a stream: an event, or metrics."""


def read_events(run: RunDir, key: str) -> list[Record]:
    """Return the records of all complete lines of a stream, or an empty list if there is no stream."""
    return list(new_records(Tail(run, key)))


def new_records(tail: Tail) -> Iterator[Record]:
    """Yield the records of the lines that were added to a stream since the last call."""
    for line in tail.new_lines():
        yield from _parsed(line)


def _parsed(line: bytes) -> Iterator[Record]:
    """Yield the record of a line, or none if a full disk cut the line short, or it is another record.

    The lines around it are still read.
    """
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
