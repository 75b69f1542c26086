"""Names a rank that has returned from the user's function while another one waits for it in a collective.

No collective tells the other ranks that one has left: they wait, and a watchdog would blame one of them. Each
rank counts its collectives. One that a returned rank has not begun can never end. A rank waits in it if its
thread stays at one line that may wait for a collective. What a rank does alone at the end of a function, such
as an export, is no collective.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from importlib import import_module
from traceback import walk_stack
from types import FrameType
from typing import Any

from clustertrain.errors import StorageError
from clustertrain.run_files.folder.run_dir import Restart
from clustertrain.run_files.records.result import Hang, Returned
from clustertrain.training.user_frames import OWN, SourceLine, source_lines_of
from clustertrain.worker.code.error_report import user_frames
from clustertrain.worker.watchdog import EXIT_CODE

_IDLE_S = 30.0
_LOOK_EVERY_S = 1.0
_MOST_BETWEEN_LOOKS_S = 2.0  # for longer, the whole process was stopped
_ASK_EVERY_S = 5.0  # the storage, while the rank is idle
_MAY_WAIT = re.compile(r"/torch/(?:distributed|autograd|nn|cuda|_tensor)|/clustertrain/training/ranks/")


def frames_of_next_call() -> list[FrameType]:
    """Return a list that gets the frame of the next function that this thread calls.

    When that function has returned, the frame still has the line; whoever holds the frame holds its
    variables, too.
    """
    frames: list[FrameType] = []

    def first_call(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            sys.setprofile(None)
            frames.append(frame)

    sys.setprofile(first_call)
    return frames


def own_line(frame: FrameType | None, code: str) -> str:
    """Return the innermost line of the user's code, which is in this folder: "train.py:15".

    It is empty if there is none.
    """
    places = [(each.f_code.co_filename, line, each.f_code.co_name) for each, line in walk_stack(frame)]
    found = user_frames(reversed(places), code)
    return f"{found[0].path}:{found[0].line}" if found else ""


class EarlyReturn:
    """The part of one rank, for the thread that makes it. It ends the process if the rank can never go on.

    Args:
        function: its name, for the message.
        code: the folder of the user's code.
    """

    def __init__(self, restart: Restart, rank: int, function: str, code: str) -> None:
        self._restart = (
            restart.attempt.run.with_patience(0).attempt(restart.attempt.n).restart(restart.number)
        )
        self._rank, self._function, self._code = rank, function, code
        self._trains, self._line = threading.get_ident(), ""
        self._left: dict[int, Returned] = {}
        self._groups: dict[str, Any] = {}  # also those that the function has destroyed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="early-return", daemon=True)

    def __enter__(self) -> EarlyReturn:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def has_returned(self, line: str) -> None:
        """Tell the other ranks that this one has returned from this line of the user's code."""
        self._line = line
        try:
            self._restart.returned(self._rank).write(Returned(line, self._collectives()))
        except StorageError as error:
            print(f"clustertrain: the other ranks do not learn of the return: {error}", file=sys.stderr)

    def _collectives(self) -> dict[str, int]:
        """Count the collectives that this rank has begun in each process group."""
        groups = [*import_module("torch.distributed.distributed_c10d")._world.pg_map]
        self._groups |= {group.group_name: group for group in groups}
        return {name: group._get_sequence_number_for_group() for name, group in self._groups.items()}

    def _watch(self) -> None:
        idle_s, asked_s, looked_s, before = 0.0, 0.0, time.monotonic(), (self._place(), self._collectives())
        while not self._ended.wait(_LOOK_EVERY_S):
            now_s, now = time.monotonic(), (self._place(), self._collectives())
            ran_s = min(now_s - looked_s, _MOST_BETWEEN_LOOKS_S)
            idle_s = idle_s + ran_s if now == before else 0.0
            looked_s, before = now_s, now
            if idle_s >= _IDLE_S and now_s - asked_s >= _ASK_EVERY_S and self._may_wait(now[0]):
                asked_s = now_s
                self._ask(now[1])

    def _place(self) -> SourceLine:
        """Return the line at which the thread is that trains."""
        frame = sys._current_frames()[self._trains]
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name

    def _may_wait(self, place: SourceLine) -> bool:
        is_own = bool(source_lines_of(OWN, [place], self._code))  # such as work.wait()
        return is_own or _MAY_WAIT.search(place[0]) is not None

    def _ask(self, mine: dict[str, int]) -> None:
        """End this process if a rank has returned before a collective in which this one waits."""
        try:
            for rank in self._restart.returned_ranks():
                left = self._left.get(rank) or self._restart.returned(rank).read()
                if left is None:
                    continue
                self._left[rank] = left
                is_before = any(mine.get(group, 0) > number for group, number in left.collectives.items())
                if is_before:
                    self._end(rank, left.line)
        except StorageError as error:
            print(f"clustertrain: cannot see whether a rank has returned: {error}", file=sys.stderr)

    def _end(self, rank: int, line: str) -> None:
        here = own_line(sys._current_frames().get(self._trains), self._code) or self._line
        text = (
            f"rank {rank} returned from {self._function}(){_at(line)} while rank {self._rank} waits in a "
            f"collective{_at(here)}, which rank {rank} never joins.\n"
            "Every rank has to leave the loop after the same step: share what decides it, for example "
            "torch.distributed.broadcast(stop, src=0) with a tensor `stop` on each rank, or all_reduce it."
        )
        print(f"clustertrain: {text}", file=sys.stderr, flush=True)
        self._restart.hang.create(Hang(self._rank, text))
        os._exit(EXIT_CODE)


def _at(line: str) -> str:
    return f" ({line})" if line else ""
