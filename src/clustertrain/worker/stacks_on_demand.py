"""Answers `clustertrain stacks`: a request file in the folder of the restart, and a file of each rank.

A thread looks for the request all the time, also while the rank makes progress: once a second on a file
system, with more than 100 ranks less often. With storage on S3 one rank of each node asks S3 every five
seconds and copies the request into the spool of the node, where the others look. Code that holds the
interpreter's lock keeps the thread from running: the command then shows the state of the process instead.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from traceback import walk_stack
from types import FrameType

from clustertrain.errors import StorageError
from clustertrain.node.limits import process_place
from clustertrain.record_file import RecordFile
from clustertrain.run.folder import Restart
from clustertrain.run.records import RankStacks, StacksRequest
from clustertrain.worker.scripts.py_spy import printed_stacks, python_frames
from clustertrain.worker.scripts.script import running

_POLL_S_ON_S3 = 5.0
_TRAINS = ("train_loop_per_worker", "make_process_group", "stage_data")  # a function of the thread to show


class StacksOnDemand:
    """The part of one rank.

    Args:
        world_size: how many ranks look for the request.
        asks_storage: this rank asks S3 for its node.
        of_script: the rank runs a script in a process of its own.
    """

    def __init__(
        self, restart: Restart, rank: int, world_size: int, *, asks_storage: bool, of_script: bool
    ) -> None:
        run = restart.attempt.run.with_patience(0)
        self._restart = run.attempt(restart.attempt.n).restart(restart.number)
        self._rank, self._of_script = rank, of_script
        key = self._restart.stacks_request.key
        self._here = RecordFile(run.spool, key, StacksRequest)
        self._in_storage = RecordFile(run.store, key, StacksRequest)
        self._poll_s = StacksRequest.look_every_s(1 if run.is_spooled else world_size)
        self._asks_storage = asks_storage and run.is_spooled
        self._answered = ""
        self._asked_s = float("-inf")
        threading.Thread(target=self._watch, name="stacks-on-demand", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(self._poll_s)
            with suppress(OSError, StorageError):  # the command names the ranks that did not answer
                self._look()

    def _look(self) -> None:
        if self._asks_storage and time.monotonic() - self._asked_s >= _POLL_S_ON_S3:
            self._asked_s = time.monotonic()
            if (found := self._in_storage.read()) is not None:
                self._here.write(found)
        request = self._here.read()
        if request is not None and request.id != self._answered:
            self._answered = request.id
            self._restart.stacks_answer(request.id, self._rank).write(self._stacks())

    def _stacks(self) -> RankStacks:
        scripts = running if self._of_script else []
        return stacks_of_script(self._rank, scripts[0]) if scripts else stacks_of_process(self._rank)


def stacks_of_process(rank: int) -> RankStacks:
    """The stacks of this process."""
    with tempfile.TemporaryFile() as file:  # faulthandler writes to a descriptor
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode(errors="replace")
    return RankStacks(rank, socket.gethostname(), os.getpid(), _frames(), text)


def stacks_of_script(rank: int, child: int) -> RankStacks:
    """The stacks of a script's process, or what the kernel knows of it."""
    text = printed_stacks(child)
    frames = python_frames(text, child) or (f"the script is {process_place(child)}", text.partition("\n")[0])
    return RankStacks(rank, socket.gethostname(), child, frames, text)


def _frames() -> tuple[str, ...]:
    """The frames of the thread that trains, up to the function that began it, else of the main thread; the
    innermost first."""
    by_thread = {
        ident: [each for each, _ in walk_stack(frame)] for ident, frame in sys._current_frames().items()
    }
    for stack in by_thread.values():
        for n, frame in enumerate(stack):
            if frame.f_code.co_name in _TRAINS:
                return tuple(map(_shown, stack[:n]))
    return tuple(map(_shown, by_thread.get(threading.main_thread().ident or 0, [])))


def _shown(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{'/'.join(path.parts[-2:])}:{frame.f_lineno} in {frame.f_code.co_name}"
