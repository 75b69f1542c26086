"""One logger in a thread: the training loop never waits for it, and never ends because of it.

The points wait in a bounded queue. If the logger fails, it is opened again later, and the same points are
written; what does not fit into the queue meanwhile is dropped and counted.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from itertools import islice

from clustertrain.worker.loggers.logger import Logger, Point

MOST_POINTS = 10_000
MOST_IMAGES = 100  # points with images that wait: they take more memory
_MOST_AT_ONCE = 500
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


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
        most_points: int = MOST_POINTS,
    ) -> None:
        self.name, self._open, self._note = name, open_logger, note
        self._first_step = first_step
        self._most_points = most_points
        self._points: deque[Point] = deque()
        self._changed = threading.Condition()
        self._is_ending = self._has_failed = self._has_ended = False
        self._taken = self._dropped = 0
        self._why = "the logger did not answer in time"
        self._logger: Logger | None = None
        self._is_noted = False
        self._thread = threading.Thread(target=self._work, name=f"logger {name}", daemon=True)
        self._thread.start()

    # -- in the training loop ------------------------------------------------------------------------

    def add(self, point: Point) -> None:
        with self._changed:
            self._taken += 1
            if len(self._points) >= (MOST_IMAGES if point.images else self._most_points):
                self._dropped += 1
                return
            self._points.append(point)
            self._changed.notify()

    def end(self, *, failed: bool) -> None:
        """Ask for an end; `finish` waits for it."""
        with self._changed:
            self._has_failed, self._is_ending = failed, True
            self._changed.notify()

    def finish(self, ends_s: float) -> None:
        """Wait until this time of the monotonic clock, and report what was not written."""
        self._thread.join(max(0.0, ends_s - time.monotonic()))
        with self._changed:
            lost = self._dropped + len(self._points)
            if lost:
                self._note(
                    "warning", f"{self.name}: {lost} of {self._taken} points were not written: {self._why}"
                )
            elif not self._has_ended:
                self._note("warning", f"{self.name}: the end was not confirmed in time")

    # -- in the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        pause_s, warned = _PAUSE_S, False
        while True:
            points = self._next()
            if not points:
                break
            is_last_try = self._is_ending
            try:
                self._write(points)
                pause_s = _PAUSE_S
            except Exception as error:  # noqa: BLE001  a logger may raise anything, and never ends the training
                self._why = _in_one_line(error)
                traceback.print_exc()  # to the log of the rank
                if not warned:
                    self._report("warning", f"{self.name}: {self._why}; the training continues")
                    warned = True
                self._close(failed=False)  # so that it keeps no file or connection open
                if is_last_try:
                    break
                self._wait_for_end(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if (why := self._close(failed=self._has_failed)) is not None:
            self._report("warning", f"{self.name}: the end was not written: {why}")
        self._has_ended = True

    def _next(self) -> list[Point]:
        """The next points, which stay in the queue; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._points or self._is_ending)
            return list(islice(self._points, _MOST_AT_ONCE))

    def _write(self, points: list[Point]) -> None:
        if self._logger is None:
            self._logger = self._open(self._first_step)
            if self._logger.place and not self._is_noted:
                self._report("note", f"{self.name}: {self._logger.place}")
                self._is_noted = True
        self._logger.write(points)
        self._first_step = points[-1].step + 1
        with self._changed:
            for _ in points:
                self._points.popleft()

    def _wait_for_end(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending, timeout=pause_s)

    def _close(self, *, failed: bool) -> str | None:
        """Close the logger; returns the reason if that fails."""
        logger, self._logger = self._logger, None
        try:
            if logger is not None:
                logger.close(failed=failed)
        except Exception as error:  # noqa: BLE001  as above
            return _in_one_line(error)
        return None

    def _report(self, kind: str, text: str) -> None:
        """An event, unless the disk of the events is full as well."""
        try:
            self._note(kind, text)
        except OSError:
            print(text, file=sys.stderr, flush=True)


def _in_one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
