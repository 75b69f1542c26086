"""A submission: a snapshot of the job in its storage, and how a node finds it there.

    take_snapshot ─▶ upload ─▶ the scheduler, with Submission.to_text() in $CLUSTERTRAIN_SUBMISSION ─▶ record

The snapshot is stored under its digest, so that a job that is submitted twice is uploaded once. job.yaml is
written last: a snapshot that has it is complete.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from clustertrain.errors import JobError, StorageError
from clustertrain.job.model import Job
from clustertrain.node import variables
from clustertrain.run_files.admission import Options
from clustertrain.run_files.command_line import UNKNOWN, CommandLine
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import job_at
from clustertrain.run_files.records.scheduler import SchedulerJob
from clustertrain.run_files.snapshot import Snapshot
from clustertrain.staging.archive import extract
from clustertrain.storage import Location, open_store
from clustertrain.storage.posix import refused
from clustertrain.storage.record_file import json_object, typed

_PREFIX = "submission0"


class AcceptedJob(Protocol):
    """A job that a scheduler has accepted: launchers/scheduler/interface.py."""

    @property
    def job_id(self) -> str: ...
    @property
    def output(self) -> str: ...
    @property
    def place(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Submission:
    """A snapshot and how to start it, as text that a scheduler can pass on. `command`: what submitted it."""

    location: Location
    name: str
    generation: int
    digest: str
    takeover: bool = False
    accept_changes: bool = False
    command: CommandLine = UNKNOWN

    @classmethod
    def from_text(cls, text: str) -> Submission:
        """Read a submission from the text that `to_text` returned.

        Raises:
            JobError: the text was not written by `to_text`.
        """
        try:
            return typed(cls, json_object(bytes.fromhex(text.removeprefix(_PREFIX))))
        except ValueError as error:
            raise JobError(
                f"${variables.SUBMISSION} is not what `clustertrain submit` sets: {error}.\n"
                "It may come from another version: submit the job again, or unset the variable."
            ) from None

    def to_text(self) -> str:
        """Return the submission as letters and digits, which no scheduler changes; it contains no secret."""
        return _PREFIX + json.dumps(asdict(self)).encode().hex()

    @staticmethod
    def is_text(text: str) -> bool:
        """Return whether `to_text` returned this text; else it is the path of a job file."""
        return text.startswith(_PREFIX)

    @property
    def run(self) -> RunDir:
        return RunDir(open_store(self.location), self.name, self.generation)

    @property
    def options(self) -> Options:
        """The options of its start."""
        return Options(
            takeover=self.takeover,
            accept_changes=self.accept_changes,
            snapshot=self.digest,
            command=replace(self.command, run=self.run.uri),
        )

    def job(self) -> Job:
        """Read the job as it was submitted.

        Its `code` is the folder on the machine that it was submitted from.

        Raises:
            StorageError: the snapshot is missing; one cause is that a node accesses another file system.
        """
        key = self.run.snapshot_job_key(self.digest)
        job = job_at(self.run, key)
        if job is None:
            raise _not_there(self.run, key)
        return job

    def unpack_code(self, folder: Path) -> None:
        """Unpack the code into a folder that does not exist yet.

        Raises:
            StorageError: the snapshot is missing or damaged, or the folder cannot be written.
        """
        key = self.run.snapshot_code_key(self.digest)
        if (packed := self.run.store.read_or_none(key)) is None:
            raise _not_there(self.run, key)
        try:
            with tempfile.NamedTemporaryFile(dir=folder.parent, suffix=".tar.gz") as archive:
                archive.write(packed)
                archive.flush()
                extract(Path(archive.name), folder)
        except OSError as error:
            raise refused(folder, "written", error) from error


def submission_of(run: RunDir, digest: str, options: Options) -> Submission:
    """Return the submission of a snapshot, with the options that its start needs.

    --fresh is in the generation.
    """
    return Submission(
        run.store.location,
        run.name,
        run.generation,
        digest,
        takeover=options.takeover,
        accept_changes=options.accept_changes,
        command=options.command.recorded(),
    )


def upload(run: RunDir, snapshot: Snapshot) -> None:
    """Write a snapshot to the storage, unless it exists already.

    Raises:
        StorageError: the storage refuses.
    """
    job_key = run.snapshot_job_key(snapshot.digest)
    if run.store.size_or_none(job_key) == len(snapshot.job_yaml):
        return
    run.store.write_atomic(run.snapshot_code_key(snapshot.digest), snapshot.code)
    run.store.write_atomic(job_key, snapshot.job_yaml)


def record(run: RunDir, scheduler: str, sent: AcceptedJob, digest: str) -> None:
    """Record that a scheduler accepted a job.

    After that any machine that can access the storage can query the scheduler.

    Raises:
        StorageError: the storage refuses.
    """
    job = SchedulerJob(scheduler, sent.job_id, digest, time.time(), dict(sent.place), sent.output)
    run.submission(scheduler, sent.job_id).write(job)


def _not_there(run: RunDir, key: str) -> StorageError:
    return StorageError(
        f"{run.store.uri(key)} does not exist, as seen from {socket.gethostname()}.\n"
        "The storage must be the same on the machine that submits and on every node: "
        "a shared file system, or s3://…"
    )
