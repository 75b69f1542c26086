"""A driver that starts before its attempt is claimed: it imports, and starts Ray, while the code is checked.

It is told what the attempt will be, and gets the attempt itself when that is claimed. If the start is
refused, the driver and its Ray end, and nothing of them is seen. The messages are files in its folder.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from clustertrain.job.file import record_of
from clustertrain.job.model import Job
from clustertrain.record_file import RecordFile
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.folder import Attempt
from clustertrain.storage import Location, open_store
from clustertrain.supervise.driver_process import environment_of_start
from clustertrain.supervise.orphans import end_processes_of
from clustertrain.supervise.private_folder import FORK_SERVER, LOG, private_folder, remove
from clustertrain.supervise.process import Guarded
from clustertrain.waiting import wait_until

_POLL_S = 0.02


@dataclass(frozen=True)
class AttemptToCome:
    """What is known of an attempt before it is claimed. `job_yaml`: as the attempt will record it."""

    job_yaml: str
    launcher: str
    world_size: int


class StartFolder:
    """The messages to and from an early driver, and its log until the attempt is claimed.

    Attributes:
        prepared: exists if the driver starts no fork server any more. Its socket is there if it has one.
    """

    def __init__(self, path: Path) -> None:
        store = open_store(Location(str(path)))
        self.to_come = RecordFile(store, "to_come", AttemptToCome)
        self.claimed = RecordFile(store, "claimed", AttemptRef)
        self.prepared, self.log, self.socket = path / "prepared", path / LOG, path / FORK_SERVER


class EarlyDriver:
    """The driver of an attempt that is not claimed yet, and its private folder."""

    def __init__(self, folder: Path, process: Guarded) -> None:
        self.folder, self.process = folder, process

    @classmethod
    def start(
        cls,
        job: Job,
        launcher: str,
        world_size: int,
        environment_in: Callable[[Path], Mapping[str, str]],
    ) -> EarlyDriver:
        """Start it for a job, with the environment for its private folder."""
        folder = private_folder()
        start = StartFolder(folder)
        start.to_come.write(AttemptToCome(record_of(job), launcher, world_size))
        command = [sys.executable, "-P", "-m", "clustertrain.driver", str(folder)]
        environment = environment_of_start(job, environment_in(folder))
        return cls(folder, Guarded(command, start.log, folder, environment))

    def fork_server(self, is_over: Callable[[], bool]) -> str:
        """The socket of its fork server, as soon as it has one; "" if it has none, or `is_over()` comes
        first."""
        start, process = StartFolder(self.folder), self.process
        wait_until(
            lambda: start.prepared.exists() or process.code() is not None or is_over(), math.inf, _POLL_S
        )
        return str(start.socket) if start.prepared.exists() and start.socket.exists() else ""

    def run(self, attempt: Attempt) -> Guarded:
        """Have it run this attempt."""
        self.process.continue_log(attempt.driver_log)
        StartFolder(self.folder).claimed.write(AttemptRef.of(attempt))
        return self.process

    def discard(self) -> None:
        """End it and all that it has started."""
        self.process.end()
        end_processes_of(self.folder)  # for the case that both guardians were killed
        remove(self.folder)
