"""The display of a run in progress: moving lines on a terminal, plain lines elsewhere.

Both take the records of the streams; `line_of` decides for both which records become a line, and its text.
Both take the output of rank 0 as well: lines that are finished, and the one that may still change; it moves
on a terminal, and is printed from time to time elsewhere.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from clustertrain.node.units import size_text, time_text
from clustertrain.observe.event_lines import line_of
from clustertrain.observe.terminal_text import escape_unencodable
from clustertrain.run_files.streams.events import Record

if TYPE_CHECKING:
    from rich.text import Text

PLAIN_PERIOD_S = 2.0  # between two lines of training metrics without a terminal
UNFINISHED_PERIOD_S = 30.0  # the same for the state of a progress bar of the user's code


def open_screen() -> Screen:
    """Open a screen: with moving lines if stdout is a terminal, otherwise with plain ones."""
    return Bar() if sys.stdout.isatty() else Lines(sys.stdout)


@contextmanager
def _lasting(stream: TextIO) -> Iterator[None]:
    """Send the output nowhere from the first write in such a block that fails; the training continues.

    A write fails when the terminal was closed, the reader (`clustertrain run | head`) has ended, or the disk
    is full.
    """
    try:
        yield
    except BlockingIOError:  # another program has made it non-blocking: the next write sends the rest
        pass
    except OSError:
        with Path(os.devnull).open("wb") as nothing:  # also for what is still in the stream's buffer
            os.dup2(nothing.fileno(), stream.fileno())


class Screen:
    """Shows records as they arrive, as complete lines, which it passes to a function."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self.echo = echo
        self._last_figures = 0.0
        self._last_output = 0.0  # or since when no line is unfinished
        self._last_unfinished: Sequence[str] = ()
        self._first: tuple[float, int] | None = None  # the time and step of this start of the workers

    def show(self, records: Iterable[Record]) -> None:
        for record in records:
            if record["kind"] == "group_started":
                self._first = None
            elif record["kind"] == "train":  # a function may log text under any name
                self._figures({k: v for k, v in record.items() if isinstance(v, int | float)})
            if (text := line_of(record)) is not None:
                self.echo(text)

    def output(self, lines: Sequence[str], unfinished: Sequence[str]) -> None:
        """Show new lines of rank 0's output, and the present state of the one that is not finished."""
        if lines:
            self.echo("\n".join(lines))
        is_due = time.monotonic() - self._last_output >= UNFINISHED_PERIOD_S
        if unfinished and not lines and is_due and unfinished != self._last_unfinished:
            self._last_unfinished = unfinished
            self.echo("\n".join(unfinished))
        if lines or is_due or not unfinished:
            self._last_output = time.monotonic()

    def _figures(self, record: Record) -> None:
        step, figures = self._paced(record)
        if time.monotonic() - self._last_figures >= PLAIN_PERIOD_S:
            self._last_figures = time.monotonic()
            self.echo(f"{step}  {figures}".rstrip())

    def _paced(self, record: Record) -> tuple[str, str]:
        """Return ("step 10/100", "loss 0.5  1,234 samples/s  0:40 left"), as far as they are known."""
        first_s, first_step = self._first = self._first or (record["time"], record["step"])
        step, total = record["step"], record.get("total_steps")
        parts = []
        if "loss" in record:
            parts.append(f"loss {record['loss']:.4g}")
        if record.get("samples_per_s"):
            parts.append(f"{record['samples_per_s']:,.0f} samples/s")
        if total and step > first_step:
            left_s = (record["time"] - first_s) / (step - first_step) * (total - step)
            parts.append(f"{time_text(left_s)} left")
        return f"step {step}" + (f"/{total}" if total else ""), "  ".join(parts)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Lines(Screen):
    """A screen for a file, a pipe or a scheduler's log."""

    def __init__(self, stream: TextIO) -> None:
        escape_unencodable(stream)
        super().__init__(self._print)
        self._stream = stream

    def _print(self, text: str) -> None:
        with _lasting(self._stream):
            print(text, file=self._stream, flush=True)


class Bar(Screen):
    """A screen on a terminal, with moving lines at the bottom.

    They are the unfinished line of the user's code, and a line with the progress of the run.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(self._print)
        console = Console(highlight=False, emoji=False)  # `train.py:100: …` stays as it is
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._own, self._unfinished = "starting", list[str]()
        self._has_figures = False
        self._live.start()
        self._draw()

    @property
    def moving(self) -> Text:
        """The moving lines, which are cut at the edge of the terminal."""
        from rich.text import Text

        lines = "\n".join(filter(None, [*self._unfinished, self._own]))
        return Text(lines, no_wrap=True, overflow="ellipsis")

    def _draw(self) -> None:
        with _lasting(sys.stdout):
            self._live.update(self.moving, refresh=True)

    def _print(self, text: str) -> None:
        with _lasting(sys.stdout):
            self._live.console.print(text, markup=False)

    def output(self, lines: Sequence[str], unfinished: Sequence[str]) -> None:
        self._unfinished = [*unfinished]
        if (lines or unfinished) and not self._has_figures:  # the code shows its progress itself
            self._own = ""
        self._draw()  # or an old state of the unfinished lines is drawn below the new
        if lines:
            with _lasting(sys.stdout):
                self._live.console.out("\n".join(lines), highlight=False)

    def show(self, records: Iterable[Record]) -> None:
        for record in records:
            kind = record["kind"]
            if kind == "stage" and "problem" not in record:
                size = f"{size_text(record.get('bytes') or 0)} of {size_text(record.get('total_bytes') or 0)}"
                self._own = f"data {record['name']}" + (f"  {size}" if record.get("total_bytes") else "")
            elif kind == "ray_started":
                self._own = "starting the workers"
            elif kind == "group_started":
                self._own, self._has_figures = "workers load the model", False
            super().show([record])
        self._draw()

    def _figures(self, record: Record) -> None:
        self._own, self._has_figures = "  ".join(filter(None, self._paced(record))), True

    def close(self) -> None:
        with _lasting(sys.stdout):
            self._live.stop()
