"""What the user sees while a run is under way: a bar on a terminal, plain lines elsewhere.

Both are fed with the records of the streams; which of them becomes a line, and how it reads, is decided once,
in `line_of`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TextIO

PLAIN_PERIOD_S = 2.0  # between two lines of training figures where there is no terminal

Record = dict[str, Any]


class Screen(Protocol):
    """Shows records as they come."""

    def show(self, records: Iterable[Record]) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def open_screen(stream: TextIO | None = None) -> Screen:
    """A bar where `stream` (default stdout) is a terminal, plain lines where it is not."""
    stream = stream or sys.stdout
    return Bar() if stream.isatty() else Lines(stream)


def line_of(record: Record) -> str | None:
    """The one line that tells of an event; None for events that are for programs only."""
    make = _LINES.get(record["kind"])
    return make(record) if make else None


def _stage_line(e: Record) -> str | None:
    size = f", {size_text(e['bytes'])}" if e.get("bytes") else ""
    if e["phase"] == "ready":
        return f"data {e['name']}: ready after {e.get('seconds', 0):.1f} s{size}"
    if e["phase"] == "wait":
        return f"data {e['name']}: another process is bringing it; waiting"
    return None


def _group_line(e: Record) -> str:
    workers = "1 worker" if e["world_size"] == 1 else f"{e['world_size']} workers"
    return f"{workers} started" + (f", restart {e['restart']}" if e["restart"] else "")


def _resumed_line(e: Record) -> str:
    redone = f"; {e['redone_steps']} steps to do again" if e["redone_steps"] else ""
    if e["checkpoint"] is None:
        return f"starting from step 0: there was no checkpoint yet{redone}"
    return f"resuming from checkpoint {e['checkpoint']} (step {e['step']}, epoch {e['epoch']}){redone}"


def _checkpoint_line(e: Record) -> str:
    last = "; stopping, as asked" if e.get("reason") == "stop" else ""
    return (
        f"checkpoint {e['name']}: {size_text(e['bytes'])}, "
        f"training waited {e['blocking_s'] * 1000:.0f} ms{last}"
    )


_LINES: dict[str, Callable[[Record], str | None]] = {
    "stage": _stage_line,
    "ray_started": lambda e: f"Ray is up after {e['seconds']:.1f} s",
    "group_started": _group_line,
    "resumed": _resumed_line,
    "fallback": lambda e: f"warning: checkpoint {e['checkpoint']} is damaged, using an older one: {e['why']}",
    "worker_died": lambda e: f"after step {e['step']}: {e['text']}",
    "restarting": lambda e: (
        f"restarting the workers ({e['restart']} of at most {e['of']} in a row without a new checkpoint)"
    ),
    "checkpoint": _checkpoint_line,
    "stop_requested": lambda e: "stopping: the workers finish this step and save; once more ends it at once",
    "warning": lambda e: f"warning: {e['text']}",
    "note": lambda e: str(e["text"]),
    "watchdog": lambda e: f"rank {e['rank']}: {e['text']}",
    "eval": lambda e: f"evaluated at step {e['step']}: {_figures(e)}",
}

_NOT_FIGURES = ("step", "epoch", "time", "total_steps", "samples_per_s", "lr", "samples_seen")


def _figures(e: Record) -> str:
    numbers = {k: v for k, v in e.items() if isinstance(v, int | float) and k not in _NOT_FIGURES}
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, its cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def size_text(size_bytes: float) -> str:
    """Bytes as people read them: 1,536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def time_text(seconds: float) -> str:
    """Seconds as people read them: 3,725 → 1:02:05."""
    minutes, s = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"


class _Pace:
    """The figures of a training record, with the time left at the pace since this start of the group."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._first: tuple[float, int] | None = None

    def figures(self, record: Record) -> tuple[str, str]:
        """("step 10/100", "loss 0.5  1,234 samples/s  0:40 left"), as far as they are known."""
        first_s, first_step = self._first = self._first or (record["time"], record["step"])
        step, total = record["step"], record.get("total_steps")
        parts = []
        if isinstance(record.get("loss"), int | float):
            parts.append(f"loss {record['loss']:.4g}")
        if record.get("samples_per_s"):
            parts.append(f"{record['samples_per_s']:,.0f} samples/s")
        if total and step > first_step:
            left_s = (record["time"] - first_s) / (step - first_step) * (total - step)
            parts.append(f"{time_text(left_s)} left")
        return f"step {step}" + (f"/{total}" if total else ""), "  ".join(parts)


class Lines:
    """Plain lines, each whole: for a file, a pipe, a scheduler's log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._reader_is_gone = False
        self._last_figures = 0.0
        self._pace = _Pace()

    def say(self, text: str) -> None:
        if self._reader_is_gone:
            return
        try:
            print(text, file=self._stream, flush=True)
        except BrokenPipeError:  # `clustertrain run | head`: the reader has gone, the training has not
            self._reader_is_gone = True

    def show(self, records: Iterable[Record]) -> None:
        for record in records:
            if record["kind"] == "group_started":
                self._pace.restart()
            if record["kind"] == "train":
                self._figures(record)
            elif (text := line_of(record)) is not None:
                self.say(text)

    def _figures(self, record: Record) -> None:
        step, figures = self._pace.figures(record)
        if time.monotonic() - self._last_figures >= PLAIN_PERIOD_S:
            self._last_figures = time.monotonic()
            self.say(f"{step}  {figures}".rstrip())

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """A progress bar with loss, samples/s and the time left; events appear above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=Console(highlight=False),
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("starting Ray", total=None, figures="")
        self._pace = _Pace()
        self._progress.start()

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False)

    def show(self, records: Iterable[Record]) -> None:
        for record in records:
            kind = record["kind"]
            if kind == "train":
                self._figures(record)
            elif kind == "stage":
                self._progress.update(
                    self._task,
                    description=f"data {record['name']}",
                    completed=record.get("bytes") or 0,
                    total=record.get("total_bytes"),
                )
            elif kind == "ray_started":
                self._progress.update(self._task, description="starting the workers")
            elif kind == "group_started":
                self._pace.restart()
                self._progress.update(
                    self._task, description="workers load the model", total=None, figures=""
                )
            if (text := line_of(record)) is not None:
                self.say(text)

    def _figures(self, record: Record) -> None:
        step, figures = self._pace.figures(record)
        total = record.get("total_steps")
        self._progress.update(
            self._task, description=step, completed=record["step"], total=total, figures=figures
        )

    def close(self) -> None:
        self._progress.stop()
