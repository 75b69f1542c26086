"""The stacks of all threads of a rank: in its log if a rank hangs, and the answer to `clustertrain stacks`.

The first rank whose watchdog expires creates hang.json in the folder of the restart. The other ranks look for
it while they make no progress: the stacks of one rank show where it waits, but not which rank it waits for.
When all have written theirs the first rank ends, and with it the group: a collective that loses a member
raises in every rank, and the stacks before that would be lost. Only the first rank lists the files of the
others: a thousand ranks that each counted all would ask the storage for ten million names a second.

`clustertrain stacks` writes a request there, which each rank answers with a file, also while it makes
progress. Code that holds the interpreter's lock keeps it from that: the command names such a rank.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from traceback import walk_stack

from clustertrain.errors import StorageError
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.folder.run_dir import Restart
from clustertrain.run_files.records.result import Hang

HANG = "hang"
"""The request of the first rank that hangs."""

_LOOK_EVERY_S = 1.0
_WAIT_FOR_OTHERS_S = 5.0


class Stacks:
    """The part of one rank. Its thread looks for both requests, because the storage may block it."""

    def __init__(self, restart: Restart, rank: int, world_size: int) -> None:
        run = restart.attempt.run.with_patience(0)
        self._restart = run.attempt(restart.attempt.n).restart(restart.number)
        self._rank, self._world_size = rank, world_size
        self._logged = threading.Lock()  # acquired by the thread that writes them, and never released
        self._is_quiet = threading.Event()
        threading.Thread(target=self._look, name="stacks", daemon=True).start()

    def look(self, is_quiet: bool) -> None:
        """Start or stop looking for a hang: a rank that makes progress does not look."""
        (self._is_quiet.set if is_quiet else self._is_quiet.clear)()

    def log(self, why: str) -> None:
        """Write the stacks of this rank to its log, once."""
        if self._logged.acquire(blocking=False):
            text = f"clustertrain: {why}; the stacks of all threads follow\n{_of_all_threads()}"
            print(text, file=sys.stderr, flush=True)

    def share(self) -> None:
        """Request the stacks of all ranks, and wait some seconds.

        The first rank waits for those of the others, another one for the end of the group.
        """
        is_first = self._restart.hang.create(Hang(self._rank))
        self._answer_hang()
        wait_until(lambda: is_first and self._have_all_answered(), _WAIT_FOR_OTHERS_S, poll_s=0.1)

    def follow_first(self) -> None:
        """Write the stacks of this rank if the first rank that hangs has requested them."""
        if hang := self._restart.hang.read():
            self.log(f"rank {hang.rank} makes no progress")
            self._answer_hang()

    def _have_all_answered(self) -> bool:
        key = self._restart.stacks_answers_key(HANG)
        return len(self._restart.run.store.list(key)) >= self._world_size

    def _look(self) -> None:
        every_s = self._restart.look_for_stacks_every_s(self._world_size)
        looked_s, answered = time.monotonic(), ""
        while True:
            is_quiet = self._is_quiet.wait(every_s)
            # It looks again; the command names silent ranks, and the own watchdog logs a hang anyway.
            with suppress(OSError, StorageError):
                if is_quiet and not self._logged.locked():
                    self.follow_first()
                if time.monotonic() - looked_s >= every_s:
                    looked_s, request = time.monotonic(), self._restart.stacks_request.read()
                    if request is not None and request.id != answered:
                        answered = request.id
                        self._answer(answered)
            if is_quiet:
                time.sleep(_LOOK_EVERY_S)

    def _answer_hang(self) -> None:
        """Answer, and write NCCL's record of its last collectives: it shows which one a rank misses."""
        if (record := flight_record()) is not None:
            self._restart.run.store.write_atomic(self._restart.flight_record_key(self._rank), record)
        self._answer(HANG)

    def _answer(self, request: str) -> None:
        key = f"{self._restart.stacks_answers_key(request)}/{self._rank}"
        self._restart.run.store.write_atomic(key, _of_all_threads().encode())


def _of_all_threads() -> str:
    """Return the stacks of all threads in the format of faulthandler, that of the main thread last.

    faulthandler itself writes 100 threads at most, and of more threads not the main one.
    """
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda each: each[0] == main)
    stacks = [
        [
            f'  File "{at.f_code.co_filename}", line {line} in {at.f_code.co_name}'
            for at, line in walk_stack(each)
        ]
        for _, each in frames
    ]
    return "\n\n".join("\n".join(["Thread (most recent call first):", *stack]) for stack in stacks)


def flight_record() -> bytes | None:
    """Return the record of torch's flight recorder, in the format of `torchfrtrace`, or None without NCCL."""
    distributed = sys.modules.get("torch.distributed")  # a process that hangs should import nothing
    if distributed is None or not distributed.is_initialized() or distributed.get_backend() != "nccl":
        return None
    record: bytes = import_module("torch._C._distributed_c10d")._dump_nccl_trace()
    return record
