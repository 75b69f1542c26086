"""One logger in a thread: the training loop never waits for it, and never ends because of it.

The points wait in a bounded queue. If the logger fails, it is opened again later, and the same points are
written; what does not fit into the queue meanwhile is dropped and counted.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from clustertrain.worker.loggers.logger import Logger, Point

MOST_POINTS = 10_000
MOST_IMAGES = 100  # points with images that wait: they take more memory
_MOST_AT_ONCE = 500
_LOOK_S = 0.2  # for the end, while there are no points
_PAUSE_S = 10.0  # after an error


class Background:
    """Writes points in a thread that starts at once.

    Args:
        open_logger: called in the thread; it may block and fail. Its argument is the first step that it
            writes: earlier values of later steps are superseded.
        first_step: that step at the first call.
        note: writes an event of a kind, with a text; called in the thread.
    """

    def __init__(
        self,
        name: str,
        open_logger: Callable[[int], Logger],
        first_step: int,
        *,
        note: Callable[[str, str], None],
    ) -> None:
        self.name, self._open, self._note = name, open_logger, note
        self._first_step = first_step
        self._points: SimpleQueue[Point] = SimpleQueue()
        self._next_points: list[Point] = []
        self._is_ending, self._has_failed = threading.Event(), False
        self._taken = self._dropped = self._written = 0
        self._why = "the logger did not answer in time"
        self._thread = threading.Thread(target=self._work, name=f"logger {name}", daemon=True)
        self._thread.start()

    def add(self, point: Point) -> None:
        self._taken += 1
        waiting = self._taken - self._dropped - self._written
        if waiting > (MOST_IMAGES if point.images else MOST_POINTS):
            self._dropped += 1
        else:
            self._points.put(point)

    def end(self, *, failed: bool) -> None:
        """Ask for an end; `finish` waits for it."""
        self._has_failed = failed
        self._is_ending.set()

    def finish(self, ends_s: float) -> None:
        """Wait until this time of the monotonic clock, and report what was not written."""
        self._thread.join(max(0.0, ends_s - time.monotonic()))
        if lost := self._taken - self._written:
            text = f"{lost} of {self._taken} points were not written: {self._why}"
            self._note("warning", f"{self.name}: {text}")
        elif self._thread.is_alive():
            self._note("warning", f"{self.name}: the end was not confirmed in time")

    def _work(self) -> None:
        warned = False
        while True:
            try:
                self._write_all(self._open(self._first_step))
                return
            except Exception as error:  # noqa: BLE001  a logger may raise anything, and never ends the training
                self._why = _in_one_line(error)
                traceback.print_exc()  # to the log of the rank
                if not warned:
                    self._note("warning", f"{self.name}: {self._why}; the training continues")
                warned = True
            if self._is_ending.is_set():
                return
            self._is_ending.wait(_PAUSE_S)

    def _write_all(self, logger: Logger) -> None:
        """Write the points until the end."""
        try:
            if logger.place:
                self._note("note", f"{self.name}: {logger.place}")
            while points := self._next():
                logger.write(points)
                self._first_step = points[-1].step + 1
                self._written += len(points)
                self._next_points = []
        except Exception:
            with suppress(Exception):  # so that it keeps no file or connection open
                logger.close(failed=False)
            raise
        logger.close(failed=self._has_failed)

    def _next(self) -> list[Point]:
        """Return the next points, again until they are written; none at the end."""
        points = self._next_points
        while not points and not (self._is_ending.is_set() and self._points.empty()):
            with suppress(Empty):
                points.append(self._points.get(timeout=_LOOK_S))
        while points and len(points) < _MOST_AT_ONCE and not self._points.empty():
            points.append(self._points.get())
        return points


def _in_one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
