"""Finds the launcher of the run that a command names.

    --to ─▶ else the launcher recorded in the storage ─▶ else the launcher of this user's newest start

The storage is authoritative. This machine cannot always read it: it may be a volume of a cluster. Then the
newest start by this user determines the launcher.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.launchers import LAUNCHERS
from clustertrain.launchers.known_runs import KnownRun, known_runs
from clustertrain.launchers.launcher import Echo, Launcher, Target, launcher_of
from clustertrain.observe.status import NotStarted, RunFiles, Status, find_run, is_known, place_of, read_files
from clustertrain.run.folder import RunDir
from clustertrain.storage import Location


def find(text: str, sets: Sequence[str], to: str | None, echo: Echo) -> tuple[Launcher, Target]:
    """Return the launcher of the run, and the run.

    Args:
        text: a job file, the folder of a run, or the name of a run that this user started.
        to: the name of the launcher if the command line gives it.
        echo: called with a note for each file of a known run that cannot be used.

    Raises:
        JobError: the job file is wrong; `sets` without a job file; several runs have that name.
        NotStarted: there is no such run.
        ClusterError: it was submitted from another machine, and its storage is not visible here.
    """
    job = _job_of(text, sets)
    newest = _newest_known(text, job, to, echo)
    if to is not None and not launcher_of(to).storage_visible:
        return launcher_of(to), _remote(text, job, newest, to)
    files = _visible_files(text, job, newest)
    if (
        newest is not None
        and not launcher_of(newest.launcher).storage_visible
        and not _is_newer(files, newest)
    ):
        return launcher_of(newest.launcher), Target(text, job, newest)
    if files is None:
        raise _not_found(text, job, newest)
    launcher = launcher_of(to) if to else launcher_in_storage(files)
    if not launcher.storage_visible:
        launcher = launcher_of("local")  # another user submitted it, or this process runs in its pod
    return launcher, Target(text, job, newest, files)


def find_elsewhere(text: str, to: str | None, echo: Echo) -> tuple[Launcher, Target] | None:
    """The launcher whose cluster holds the storage of a job; None if this machine reads that storage itself.

    Raises:
        JobError: the job file is wrong.
    """
    job = _job_of(text, ())
    known = _newest_known(text, job, to, echo)
    name = to or (known.launcher if known is not None else None)
    if name is None or launcher_of(name).storage_visible:
        return None
    return launcher_of(name), Target(text, job, known)


def launcher_in_storage(files: RunFiles) -> Launcher:
    """The launcher recorded in the storage. If this version does not have it, the launcher is `local`, which
    needs only the files."""
    return launcher_of(files.launcher if files.launcher in LAUNCHERS else "local")


def status_of(run: RunDir) -> Status:
    """The status of a run in a visible storage: its files and the state of its job in the scheduler.

    Raises:
        NotStarted: it was neither started nor submitted.
    """
    files = read_files(run)
    return launcher_in_storage(files).statuses([files])[0]


def _job_of(text: str, sets: Sequence[str]) -> Job | None:
    if Path(text).is_file():
        return load_job(Path(text), sets)
    if sets:
        raise JobError(
            f"--set changes a job file, and {text} is not a job file.\nName the job file, or omit --set."
        )
    return None


def _newest_known(text: str, job: Job | None, to: str | None, echo: Echo) -> KnownRun | None:
    """This user's newest start of the run."""
    runs, notes = known_runs()
    for note in notes:
        echo(f"note: {note}")
    named = [each for each in runs if _is_named(each, text, job) and to in (None, each.launcher)]
    if job is None and len({(each.storage.endpoint, each.storage.uri) for each in named}) > 1:
        files = "\n".join(f"  {each.job_file} in {each.storage.uri}" for each in named)
        raise JobError(f"Several runs have the name {text}:\n{files}\nName the job file of one.")
    return named[0] if named else None


def _remote(text: str, job: Job | None, known: KnownRun | None, to: str) -> Target:
    if job is None and known is None:
        raise JobError(
            f"{text} is not a job file, and this machine has submitted no run of that name with --to {to}.\n"
            "Name the job file."
        )
    # The known run may be on another cluster than the one that the job file names; the file decides.
    return Target(text, job, None if job is not None else known)


def _is_named(known: KnownRun, text: str, job: Job | None) -> bool:
    """Whether the text names this known run."""
    if job is not None:
        return known.name == job.name and known.is_in(job.storage.location)
    if _is_name(text):
        return known.name == text
    storage, name = place_of(text)
    return known.name == name and known.is_in(Location(storage))


def _is_name(text: str) -> bool:
    return "/" not in text and not Path(text).exists()


def _visible_files(text: str, job: Job | None, known: KnownRun | None) -> RunFiles | None:
    """The files of the run in its storage; None if this machine does not see it there."""
    if job is not None:
        location, name = job.storage.location, job.name
    elif known is not None:
        location, name = known.storage, known.name
    else:
        storage, name = place_of(text)
        location = Location(storage)
    if known is not None and not launcher_of(known.launcher).storage_visible and location.is_s3:
        return None  # only the cluster is sure to have the keys of that S3 storage
    run = RunDir.newest(location, name)
    return read_files(run) if is_known(run) else None


def _is_newer(files: RunFiles | None, known: KnownRun) -> bool:
    """Whether the storage holds a later start than the known one, by another launcher."""
    return files is not None and files.launcher != known.launcher and files.started_at > known.time


def _not_found(text: str, job: Job | None, known: KnownRun | None) -> JobError | ClusterError:
    if known is not None and not known.started_here:
        return ClusterError(
            f"{known.name} was started from {known.host} on {known.where}, and its storage "
            f"{known.storage.uri} is not visible from {socket.gethostname()}.\n"
            f"Run this command on {known.host}, or where that storage is mounted."
        )
    try:
        find_run(text)  # its error lists the runs of the storage
    except NotStarted as error:
        return error
    name = job.name if job else text
    return NotStarted(f"{name} was never started.\nStart it with `clustertrain run JOBFILE`.")
