"""Which launcher has the run that a command names.

    --to ─▶ else what the storage says, where this machine sees the run ─▶ else what this user started

The storage is the truth. Where it is not visible, as on the volume of a cluster, the newest start counts that
this user made.
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
from clustertrain.observe.status import NotStarted, Status, find_run, is_known, read_files
from clustertrain.run.folder import RunDir
from clustertrain.storage import Location


def find(text: str, sets: Sequence[str], to: str | None, echo: Echo) -> tuple[Launcher, Target]:
    """The launcher that has the run, and the run.

    Args:
        text: a job file, the folder of a run, or the name of a run that this user started.
        to: the name of the launcher where the command line gives it.
        echo: gets a note for each file of a known run that cannot be used.

    Raises:
        JobError: the job file is wrong; `sets` without a job file; several runs of that name.
        NotStarted: there is no such run.
        ClusterError: it was submitted elsewhere, and its storage cannot be seen from here.
    """
    job = _job_of(text, sets)
    newest = _newest_known(text, job, to, echo)
    if to is not None and not launcher_of(to).storage_visible:
        return launcher_of(to), _remote(text, job, newest, to)
    run = _visible_run(text, job, newest)
    if newest is not None and not launcher_of(newest.launcher).storage_visible and not _is_newer(run, newest):
        return launcher_of(newest.launcher), Target(text, job, newest)
    if run is None:
        raise _not_found(text, job, newest)
    launcher = launcher_of(to) if to else launcher_in_storage(run)
    if not launcher.storage_visible:
        launcher = launcher_of("local")  # somebody else submitted it, or this is its pod
    return launcher, Target(text, job, newest, run)


def find_elsewhere(text: str, to: str | None, echo: Echo) -> tuple[Launcher, Target] | None:
    """The launcher whose cluster holds the storage of a job; None where this machine sees that storage.

    Raises:
        JobError: the job file is wrong.
    """
    job = _job_of(text, ())
    known = _newest_known(text, job, to, echo)
    name = to or (known.launcher if known is not None else None)
    if name is None or launcher_of(name).storage_visible:
        return None
    return launcher_of(name), Target(text, job, known)


def launcher_in_storage(run: RunDir) -> Launcher:
    """The launcher that the storage names; one of a later version is read by its files."""
    name = read_files(run).launcher
    return launcher_of(name if name in LAUNCHERS else "local")


def status_of(run: RunDir) -> Status:
    """Where a run stands that this machine sees, with what its scheduler says.

    Raises:
        NotStarted: it was neither started nor submitted.
    """
    return launcher_in_storage(run).statuses([run])[0]


def _job_of(text: str, sets: Sequence[str]) -> Job | None:
    if Path(text).is_file():
        return load_job(Path(text), sets)
    if sets:
        raise JobError(f"--set changes a job file, and {text} is none.\nName the job file, or omit --set.")
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
            f"{text} is no job file, and no run of that name was submitted with --to {to} from here.\n"
            "Name the job file."
        )
    # The file names the cluster, in case that it was submitted to several.
    return Target(text, job, None if job is not None else known)


def _is_named(known: KnownRun, text: str, job: Job | None) -> bool:
    """Whether a known run is the one that the text names."""
    if job is not None:
        return known.name == job.name and known.is_in(job.storage.location)
    if _is_name(text):
        return known.name == text
    storage, name = _place(text)
    return known.name == name and known.is_in(Location(storage))


def _is_name(text: str) -> bool:
    return "/" not in text and not Path(text).exists()


def _place(text: str) -> tuple[str, str]:
    """Storage and name of the run whose folder this is."""
    if Location(text).is_s3:
        storage, _, name = text.rstrip("/").rpartition("/")
        return storage, name
    return str(Path(text).absolute().parent), Path(text).absolute().name


def _visible_run(text: str, job: Job | None, known: KnownRun | None) -> RunDir | None:
    """The run in the storage, where this machine sees it there."""
    if job is not None:
        location, name = job.storage.location, job.name
    elif known is not None:
        location, name = known.storage, known.name
    else:
        location, name = Location(_place(text)[0]), _place(text)[1]
    if known is not None and not launcher_of(known.launcher).storage_visible and location.is_s3:
        return None  # this machine may have no key for it: the cluster has
    run = RunDir.newest(location, name)
    return run if is_known(run) else None


def _is_newer(run: RunDir | None, known: KnownRun) -> bool:
    """Whether the storage holds a start, by another launcher, that was made after that of the known run."""
    if run is None:
        return False
    files = read_files(run)
    return files.launcher != known.launcher and files.started_at > known.time


def _not_found(text: str, job: Job | None, known: KnownRun | None) -> JobError | ClusterError:
    if known is not None and not known.is_from_here:
        return ClusterError(
            f"{known.name} was started from {known.host} on {known.where}, and its storage "
            f"{known.storage.uri} is not visible from {socket.gethostname()}.\n"
            f"Run this command on {known.host}, or where that storage is mounted."
        )
    try:
        find_run(text)  # its error lists what there is
    except NotStarted as error:
        return error
    name = job.name if job else text
    return NotStarted(f"{name} was never started.\nStart it with `clustertrain run JOBFILE`.")
