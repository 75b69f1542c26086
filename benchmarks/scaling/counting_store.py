"""Counts each operation on the storage, whoever opened the store: it wraps the methods of PosixStore, and
those that read and write streams."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.streams import Tail
from clustertrain.storage import PosixStore

OPERATIONS = {
    "read_or_none": "read",
    "write_atomic": "write",
    "create_exclusive": "create",
    "list": "list",
    "trees": "list",
    "collect_leftovers": "list",
    "remove": "remove",
    "remove_tree": "remove",
    "size_or_none": "size",
    "new_tree": "create",
}
"""The methods of a store, and the kind of operation that each one is."""


@dataclass
class Use:
    """What the actors of one kind did in one phase, all together.

    Attributes:
        operations: by their kind.
        moved_bytes: read and written, and the names in listings.
        members: the actors, by number.
    """

    operations: Counter[str] = field(default_factory=Counter)
    moved_bytes: int = 0
    members: set[int] = field(default_factory=set)

    @property
    def total(self) -> int:
        return self.operations.total()


class Counts:
    """What was done, by phase and kind of actor. Nothing is counted outside of `acting`."""

    def __init__(self) -> None:
        self.uses: dict[tuple[str, str], Use] = defaultdict(Use)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._now: ContextVar[tuple[str, str] | None] = ContextVar("actor", default=None)
        self._is_inside: ContextVar[bool] = ContextVar("inside", default=False)
        self._lock = threading.Lock()

    @contextmanager
    def acting(self, phase: str, actor: str, number: int = 0) -> Iterator[None]:
        """Within the block this thread is an actor of that kind."""
        with self._lock:
            self.uses[phase, actor].members.add(number)
        token = self._now.set((phase, actor))
        try:
            yield
        finally:
            self._now.reset(token)

    def add(self, kind: str, moved_bytes: int, seconds: float | None = None) -> None:
        """Count one operation of the actor that this thread is."""
        if (now := self._now.get()) is None:
            return
        with self._lock:
            use = self.uses[now]
            use.operations[kind] += 1
            use.moved_bytes += moved_bytes
            if seconds is not None:
                self.seconds[kind].append(seconds)

    @contextmanager
    def of_this_process(self) -> Iterator[None]:
        """Within the block all stores, event logs and readers of streams are counted."""
        wrapped: list[tuple[type, str, str]] = [(PosixStore, name, kind) for name, kind in OPERATIONS.items()]
        wrapped.append((EventLog, "write", "append"))
        real = {(owner, name): getattr(owner, name) for owner, name, _ in wrapped}
        for owner, name, kind in wrapped:
            setattr(owner, name, self._counted(real[owner, name], kind))
        real[Tail, "new"] = Tail.new
        setattr(Tail, "new", self._counted_tail(Tail.new))  # noqa: B010  a method, for mypy
        try:
            yield
        finally:
            for (owner, name), method in real.items():
                setattr(owner, name, method)

    def _counted(self, method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def operation(*args: Any, **fields: Any) -> Any:
            if self._is_inside.get():  # `trees` calls `list`: one operation
                return method(*args, **fields)
            token, began_s = self._is_inside.set(True), time.perf_counter()
            try:
                found = method(*args, **fields)
            finally:
                self._is_inside.reset(token)
            written = sum(len(arg) for arg in args[1:] if isinstance(arg, bytes))
            if kind == "append":
                written = len(repr(fields))
            self.add(kind, written + _size(found), time.perf_counter() - began_s)
            return found

        return operation

    def _counted_tail(self, method: Callable[[Tail], Iterator[bytes]]) -> Callable[[Tail], Iterator[bytes]]:
        def new(tail: Tail) -> Iterator[bytes]:
            began_s = time.perf_counter()
            blocks = list(method(tail))
            self.add("read", sum(map(len, blocks)), time.perf_counter() - began_s)
            return iter(blocks)

        return new

    def append_to(self, path: Path, line: str) -> None:
        """Append a line to a log, as the output of a process does."""
        began_s = time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"{line}\n")
        self.add("append", len(line) + 1, time.perf_counter() - began_s)


def _size(found: object) -> int:
    if isinstance(found, bytes):
        return len(found)
    return sum(len(str(name)) for name in found) if isinstance(found, list) else 0
