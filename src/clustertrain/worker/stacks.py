"""The stacks of every rank, when one of them hangs: it alone would show where it waits, and not for whom.

The first rank whose watchdog expires writes its stacks to its log and leaves a mark in the attempt's folder.
The others, which wait for it or for the one that it waits for, look for marks while they make no progress,
and do the same. Only then does the first one end, and with it the group; a collective that loses a member
raises in every rank, and nobody could see any more where it stood.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time

from clustertrain.errors import StorageError
from clustertrain.node.processes import this_process
from clustertrain.run.folder import Restart
from clustertrain.waiting import wait_until

_LOOK_EVERY_S = 1.0
_AFTER_ERROR_S = 60.0
_WAIT_FOR_OTHERS_S = 6.0


def write_stacks(why: str) -> None:
    """The stacks of all threads, to stderr, which is the rank's log."""
    print(f"clustertrain: {why}; the stacks of all threads follow", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)


class Stacks:
    """One rank's part in it. The thread that looks for marks is its own: storage may keep it waiting."""

    def __init__(self, restart: Restart, rank: int, world_size: int) -> None:
        run = restart.attempt.run.with_patience(0)
        self._restart = run.attempt(restart.attempt.n).restart(restart.number)
        self._rank, self._world_size = rank, world_size
        self._written = threading.Lock()  # taken by the thread that writes them, and never given back
        self._is_quiet = threading.Event()
        threading.Thread(target=self._look, name="stacks", daemon=True).start()

    def look(self, is_quiet: bool) -> None:
        """Look for the marks of others from now on, or no longer: a rank that gets on asks nobody."""
        (self._is_quiet.set if is_quiet else self._is_quiet.clear)()

    def write(self, why: str) -> None:
        """The stacks of this rank, once."""
        if self._written.acquire(blocking=False):
            write_stacks(why)

    def share(self) -> None:
        """Leave a mark, and wait some seconds until every other rank that can has left its own."""
        self._mark()
        wait_until(lambda: len(self._marks()) >= self._world_size, _WAIT_FOR_OTHERS_S, poll_s=0.1)

    def _look(self) -> None:
        while True:
            self._is_quiet.wait()
            try:
                if marks := self._marks():
                    self.write(f"rank {marks[0]} makes no progress")
                    self._mark()
                    return
            except StorageError as error:
                print(f"clustertrain: whether another rank hangs cannot be seen: {error}", file=sys.stderr)
                time.sleep(_AFTER_ERROR_S)
            time.sleep(_LOOK_EVERY_S)

    def _marks(self) -> list[str]:
        return self._restart.attempt.run.store.list(self._restart.stacks_key)

    def _mark(self) -> None:
        self._restart.stacks(self._rank).write(this_process())
