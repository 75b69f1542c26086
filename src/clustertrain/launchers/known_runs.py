"""The runs that this user started or submitted, on this machine or a cluster: one small file for each run.

    $XDG_STATE_HOME/clustertrain/runs/<name>-<digest>.json      (~/.local/state without that variable)
                                      <name>-<digest>.out       what a run in the background printed

The storage of a run is authoritative. A file here only names the launcher of the run, its storage and its
job. A file that cannot be used is skipped with a note, so no command fails because of it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from clustertrain.errors import StorageError
from clustertrain.job.file import dump_job, parse_job
from clustertrain.job.model import Job
from clustertrain.job.site import SiteJob
from clustertrain.node.regular_file import read_file
from clustertrain.node.user_folders import known_runs_folder
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.run_address import RunAddress
from clustertrain.storage import Location, open_store
from clustertrain.storage.posix import refused
from clustertrain.storage.record_file import decoded, encoded


@dataclass(frozen=True)
class KnownRun:
    """A run that this user started, and its launcher.

    Attributes:
        launcher: the name of a launcher.
        storage: its URI on the machine that started the run.
        job: the job as it was started, with `--set` and the site file applied, as YAML.
        job_file: the absolute path of the job file, for hints.
        cluster: a text that names the scheduler's cluster, or empty for a run on one machine.
        place: where its job is, as the launcher knows it.
        job_id: the scheduler's ID of the job, or empty for a run in front of its user.
        storage_there: its URI within the cluster, if only that reads it; empty if this machine does.
        host: the machine that started the run.
        time: the time of the newest start, in seconds since 1970.
    """

    name: str
    launcher: str
    storage: Location
    job: str
    job_file: str
    cluster: str = ""
    job_id: str = ""
    storage_there: str = ""
    place: dict[str, str] = field(default_factory=dict)
    host: str = field(default_factory=socket.gethostname)
    time: float = field(default_factory=time.time)

    @classmethod
    def of(cls, job: Job, job_file: str, launcher: str, cluster: str = "", job_id: str = "") -> KnownRun:
        path, text = str(Path(job_file).absolute()), dump_job(job, defaults=True)
        return cls(job.name, launcher, job.storage.location, text, path, cluster, job_id)

    @property
    def submitted_job(self) -> SiteJob:
        """The job as it was started."""
        return SiteJob(parse_job(self.job, self.job_file))

    @property
    def where(self) -> str:
        """The place of the run as text, such as `SLURM cluster sim, job 12`."""
        if not self.cluster:
            return "this machine" if self.host == socket.gethostname() else self.host
        return f"{self.cluster}, job {self.job_id}" if self.job_id else self.cluster

    @property
    def uri(self) -> str:
        """The folder of the run."""
        return f"{self.storage.uri.rstrip('/')}/{self.name}"

    def is_in(self, storage: Location) -> bool:
        own = self.storage
        return (own.uri.rstrip("/"), own.endpoint) == (storage.uri.rstrip("/"), storage.endpoint)

    def is_at(self, place: RunAddress) -> bool:
        """Return whether the user's folder is a folder of this run.

        A folder has no endpoint, and may be copied from a message of a process in the cluster.
        """
        uris = {uri.rstrip("/") for uri in (self.storage.uri, self.storage_there)}
        has_endpoint = place.storage.endpoint in (None, self.storage.endpoint)
        return self.name == place.name and place.storage.uri.rstrip("/") in uris and has_endpoint


def record_known_run(run: KnownRun) -> str | None:
    """Write the file of a run, or replace it atomically; return a note if that failed."""
    folder = known_runs_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        open_store(str(folder)).write_atomic(state_file(run).name, encoded(run))
    except (OSError, StorageError) as error:
        return f"{folder} cannot be written, so `clustertrain ls` will not list this run: {error}"
    return None


def remove_known_run(run: KnownRun) -> None:
    """Remove the files of a run that its storage no longer contains."""
    for suffix in (".json", ".out"):
        with suppress(OSError):  # already removed, or the folder is read-only: the file does no harm
            state_file(run, suffix).unlink()


def by_folder(command: CommandLine, run: KnownRun) -> CommandLine:
    """Return the command line of a run, for messages.

    `--set` options make it long, so other commands then name the run by its folder.
    """
    return replace(command, run=run.uri) if command.sets else command


def state_file(run: KnownRun, suffix: str = ".json") -> Path:
    """Return the path of a file of this user about a run; by default, of the file that records it."""
    identity = "\n".join((run.launcher, run.cluster, run.storage.endpoint or "", run.storage.uri, run.name))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return known_runs_folder() / f"{run.name[:40]}-{digest}{suffix}"


def known_runs() -> tuple[list[KnownRun], list[str]]:
    """Return the known runs, newest first, and a note for each file that cannot be used."""
    runs, notes = [], []
    try:
        paths = sorted(known_runs_folder().glob("*.json"))
    except OSError as error:
        return [], [f"{known_runs_folder()} cannot be read: {error}"]
    for path in paths:
        try:
            runs.append(_read(path))
        except StorageError as error:
            notes.append(f"{str(error).splitlines()[0].removesuffix('.')}; it is skipped")
    return sorted(runs, key=lambda run: run.time, reverse=True), notes


def _read(path: Path) -> KnownRun:
    """Read the record of a run.

    Raises:
        StorageError: the file cannot be used; the first line of the error is the reason.
    """
    try:
        if path.stat().st_uid != os.getuid():
            raise StorageError(f"{path} belongs to another user")
        return decoded(KnownRun, read_file(path), str(path))
    except OSError as error:
        raise refused(path, "read", error) from error
