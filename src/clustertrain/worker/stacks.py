"""Writes the stacks of every rank if one of them hangs.

The stacks of one rank show where it waits, but not which rank it waits for.

The first rank whose watchdog expires writes its stacks to its log, and creates hang.json and a mark in the
folder of the restart. The other ranks look for hang.json while they make no progress, write their stacks and
their own marks. When all marks are there the first rank ends, and with it the group: a collective that loses
a member raises in every rank, and the stacks before that would be lost.

Only the first rank lists the marks. In a collective all ranks expire within a second, and if each counted the
marks of all, a thousand ranks would ask the storage for ten million names a second.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from importlib import import_module

from clustertrain.errors import StorageError
from clustertrain.node.processes import this_process
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.folder.run_dir import Restart
from clustertrain.run_files.records.result import Hang

_LOOK_EVERY_S = 1.0
_AFTER_ERROR_S = 60.0
_WAIT_FOR_OTHERS_S = 5.0


def write_stacks(why: str) -> None:
    """Write the stacks of all threads to stderr, which is the rank's log."""
    print(f"clustertrain: {why}; the stacks of all threads follow", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)


class Stacks:
    """The part of one rank. A separate thread looks for a hang, because the storage may block it."""

    def __init__(self, restart: Restart, rank: int, world_size: int) -> None:
        run = restart.attempt.run.with_patience(0)
        self._restart = run.attempt(restart.attempt.n).restart(restart.number)
        self._rank, self._world_size = rank, world_size
        self._written = threading.Lock()  # acquired by the thread that writes them, and never released
        self._is_quiet = threading.Event()
        threading.Thread(target=self._look, name="stacks", daemon=True).start()

    def look(self, is_quiet: bool) -> None:
        """Start or stop looking for a hang: a rank that makes progress does not look."""
        (self._is_quiet.set if is_quiet else self._is_quiet.clear)()

    def write(self, why: str) -> None:
        """Write the stacks of this rank, once."""
        if self._written.acquire(blocking=False):
            write_stacks(why)

    def share(self) -> None:
        """Create this rank's mark, and wait some seconds.

        The first rank waits for the marks of the others, another one for the end of the group.
        """
        is_first = self._restart.hang.create(Hang(self._rank))
        self._mark()
        wait_until(lambda: is_first and self._all_are_marked(), _WAIT_FOR_OTHERS_S, poll_s=0.1)

    def follow_first(self) -> bool:
        """Write the stacks of this rank if another one hangs. Returns whether one does."""
        if (hang := self._restart.hang.read()) is None:
            return False
        self.write(f"rank {hang.rank} makes no progress")
        self._mark()
        return True

    def _all_are_marked(self) -> bool:
        return len(self._restart.attempt.run.store.list(self._restart.stacks_key)) >= self._world_size

    def _look(self) -> None:
        while True:
            self._is_quiet.wait()
            try:
                if self.follow_first():
                    return
            except StorageError as error:
                print(f"clustertrain: cannot check whether another rank hangs: {error}", file=sys.stderr)
                time.sleep(_AFTER_ERROR_S)
            time.sleep(_LOOK_EVERY_S)

    def _mark(self) -> None:
        self._write_flight_record()
        self._restart.stacks(self._rank).write(this_process())

    def _write_flight_record(self) -> None:
        """Write NCCL's record of its last collectives, which shows the one that a rank has not entered."""
        if (record := flight_record()) is not None:
            key = self._restart.flight_record_key(self._rank)
            self._restart.attempt.run.store.write_atomic(key, record)


def flight_record() -> bytes | None:
    """Return the record of torch's flight recorder, in the format of `torchfrtrace`, or None without NCCL."""
    distributed = sys.modules.get("torch.distributed")  # a process that hangs should import nothing
    if distributed is None or not distributed.is_initialized() or distributed.get_backend() != "nccl":
        return None
    record: bytes = import_module("torch._C._distributed_c10d")._dump_nccl_trace()
    return record
