"""The fault that a run of `clustertrain drill` causes itself, as its job says (`drill.fault`).

A fault from outside has no exact step, since those of a small job take milliseconds, and needs a way to each
node. A process that sends itself SIGKILL ends like any killed one: nothing of it runs afterwards.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clustertrain.job.sections import Drill
from clustertrain.run_files.folder.run_dir import Restart
from clustertrain.run_files.records.requests import StopRequest

_HOLD_S = 30.0  # until the end of this process: with the driver
_READ_S = 1.0  # after which rank 0 has read a request to stop
_LOOK_S = 0.002


class FaultInjector:
    """Strikes once, in the first start of a run; does nothing without a fault."""

    def __init__(self, restart: Restart, rank: int, drill: Drill, note: Callable[..., None]) -> None:
        self._fault = drill.fault if (restart.attempt.n, restart.number) == (1, 0) else None
        self._attempt, self._rank, self._note = restart.attempt, rank, note
        self._loss, self._losses, self._is_saving = re.compile(drill.loss), 0, False

    def step_done(self, step: int) -> None:
        """Strike if it is due after this step."""
        fault = self._fault
        if fault is None or step < fault.step:
            return
        if fault.kind == "rank" and self._rank == fault.rank:
            self._kill(os.getpid())
        elif fault.kind == "driver":
            beat = self._attempt.heartbeat.read()
            if beat is not None and beat.is_here and os.environ.get("LOCAL_RANK", "0") == "0":
                self._kill(beat.pid)
        elif fault.kind == "stop" and self._rank == 0:
            self._tell()
            self._attempt.stop.write(StopRequest("user"))
            time.sleep(_READ_S)
        if fault.kind != "save":
            self._fault = None

    def saving(self, step: int) -> None:
        """Note that a save begins, to strike before its commit."""
        self._is_saving = self._fault is not None and self._fault.kind == "save" and step >= self._fault.step

    def committing(self) -> None:
        """Strike in a save: the files of a checkpoint are written, and its manifest is not."""
        if self._is_saving:
            self._kill(os.getpid())

    def printed(self, line: str) -> None:
        """Take a line that a script has printed. Its losses count as steps."""
        if self._fault is None or self._loss.search(line) is None:
            return
        self._losses += 1
        if self._fault.kind != "save":
            self.step_done(self._losses)
        elif self._losses == self._fault.step and self._rank == self._fault.rank:
            run = self._attempt.run
            folder = run.local_path(run.checkpoints.key)
            threading.Thread(target=self._at_next_file, args=(folder,), daemon=True).start()

    def _at_next_file(self, folder: Path) -> None:
        """Strike as soon as a script writes a file of a checkpoint."""
        before = _sizes(folder)
        while _sizes(folder) == before:
            time.sleep(_LOOK_S)
        self._kill(os.getpid())

    def _kill(self, pid: int) -> None:
        self._tell()
        os.kill(pid, signal.SIGKILL)
        time.sleep(_HOLD_S)

    def _tell(self) -> None:
        if self._fault is not None:
            self._note("fault", what=self._fault.kind, rank=self._rank, step=self._losses or self._fault.step)


def _sizes(folder: Path) -> dict[str, Any]:
    found = {}
    for path in folder.rglob("*"):
        try:
            found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
        except FileNotFoundError:  # removed meanwhile
            continue
    return found
