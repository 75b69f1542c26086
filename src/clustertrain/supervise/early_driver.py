"""A driver that starts before its attempt is claimed: it imports, and starts Ray, while the code is checked.

It is told what the attempt will be, and gets the attempt itself when that is claimed. If the start is
refused, the driver and its Ray end, and nothing of them is seen. Both messages are files in its folder.

A spare one (launchers/local/warm/) starts before its run, and imports nothing of the user's, who may still
change it: it learns the job with the attempt.
"""

from __future__ import annotations

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
from clustertrain.supervise.private_folder import private_folder
from clustertrain.supervise.private_process import LOG, PrivateProcess
from clustertrain.supervise.process import Guarded


@dataclass(frozen=True)
class AttemptToCome:
    """What is known of an attempt before it is claimed. `job_yaml`: as the attempt will record it; of a spare
    driver another job with the same start."""

    job_yaml: str
    launcher: str
    world_size: int
    is_spare: bool = False


@dataclass(frozen=True)
class Claimed:
    """The attempt that was claimed, as the text of an AttemptRef."""

    attempt: str


@dataclass(frozen=True)
class Ready:
    """The driver has nothing left to do before the claim. `seconds`: what it took."""

    seconds: float


class StartFolder:
    """The messages to and from an early driver, and its log until the attempt is claimed."""

    def __init__(self, path: Path) -> None:
        store = open_store(Location(str(path)))
        self.to_come = RecordFile(store, "to_come", AttemptToCome)
        self.claimed = RecordFile(store, "claimed", Claimed)
        self.ready = RecordFile(store, "ready", Ready)
        self.log = path / LOG


class EarlyDriver(PrivateProcess):
    """The driver of an attempt that is not claimed yet."""

    @classmethod
    def start(
        cls,
        job: Job,
        launcher: str,
        world_size: int,
        environment_in: Callable[[Path], Mapping[str, str]],
        *,
        is_spare: bool = False,
    ) -> EarlyDriver:
        """Start it for a job, with the environment for its private folder."""
        folder = private_folder()
        start = StartFolder(folder)
        start.to_come.write(AttemptToCome(record_of(job), launcher, world_size, is_spare))
        command = [sys.executable, "-m", "clustertrain.driver", str(folder)]
        environment = environment_of_start(job, environment_in(folder))
        return cls(folder, Guarded(command, start.log, folder, environment))

    def run(self, attempt: Attempt) -> Guarded:
        """Have it run this attempt."""
        self.process.log = attempt.driver_log
        StartFolder(self.folder).claimed.write(Claimed(AttemptRef.of(attempt).to_text()))
        return self.process
