"""The display of a run in progress: a bar on a terminal, plain lines elsewhere.

Both take the records of the streams; `line_of` decides for both which records become a line, and its text.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Protocol, TextIO

from clustertrain.observe.event_lines import Record, line_of
from clustertrain.units import time_text

PLAIN_PERIOD_S = 2.0  # between two lines of training metrics without a terminal


class Screen(Protocol):
    """Shows records as they arrive."""

    def show(self, records: Iterable[Record]) -> None: ...

    def echo(self, text: str) -> None: ...

    def close(self) -> None: ...


def open_screen(stream: TextIO | None = None) -> Screen:
    """A bar if `stream` (default stdout) is a terminal, otherwise plain lines."""
    stream = stream or sys.stdout
    return Bar() if stream.isatty() else Lines(stream)


class _Pace:
    """The metrics of a training record, with the remaining time at the speed since this start of the
    group."""

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
    """Plain complete lines: for a file, a pipe, a scheduler's log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._reader_has_closed = False
        self._last_figures = 0.0
        self._pace = _Pace()

    def echo(self, text: str) -> None:
        if self._reader_has_closed:
            return
        try:
            print(text, file=self._stream, flush=True)
        except BrokenPipeError:  # `clustertrain run | head`: the reader has ended, the training continues
            self._reader_has_closed = True

    def show(self, records: Iterable[Record]) -> None:
        for record in records:
            if record["kind"] == "group_started":
                self._pace.restart()
            if record["kind"] == "train":
                self._figures(record)
            elif (text := line_of(record)) is not None:
                self.echo(text)

    def _figures(self, record: Record) -> None:
        step, figures = self._pace.figures(record)
        if time.monotonic() - self._last_figures >= PLAIN_PERIOD_S:
            self._last_figures = time.monotonic()
            self.echo(f"{step}  {figures}".rstrip())

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


class Bar:
    """A progress bar with loss, samples/s and the remaining time; events appear above it."""

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

    def echo(self, text: str) -> None:
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
                self.echo(text)

    def _figures(self, record: Record) -> None:
        step, figures = self._pace.figures(record)
        total = record.get("total_steps")
        self._progress.update(
            self._task, description=step, completed=record["step"], total=total, figures=figures
        )

    def close(self) -> None:
        self._progress.stop()
