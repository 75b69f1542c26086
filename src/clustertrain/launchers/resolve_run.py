"""Finds the launcher of the run that a command names.

    --to ─▶ else the launcher recorded in the storage ─▶ else the launcher of this user's newest start

The storage is authoritative. This machine cannot always read it: it may be a volume of a cluster. Then the
newest start by this user determines the launcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.job.file import load_job
from clustertrain.job.launcher_plugins import plugins
from clustertrain.job.model import Job
from clustertrain.launchers.known_runs import known_runs
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.lookup import launcher_of
from clustertrain.launchers.target import Echo, Reach, Target
from clustertrain.observe.status import RunFiles, is_job_file, no_run, places_named, read_files, run_at
from clustertrain.run_files.recorded_job import job_at


def find(text: str, sets: Sequence[str], to: str | None, echo: Echo) -> tuple[Launcher, Target]:
    """Return the launcher of the run, and the run.

    Args:
        text: a job file, or a folder as for `addresses_of`.
        to: the name of the launcher if the command line gives it.
        echo: called with a note for each file of a known run that cannot be used.

    Raises:
        JobError: the job file is wrong; `sets` without a job file.
        NotStarted: there is no such run.
    """
    return _located(_target(text, sets, to, echo), to)


def find_job(text: str, sets: Sequence[str], to: str | None, echo: Echo) -> tuple[Reach, Target] | Job:
    """Return the job of a job file, or the newest job of a run, whichever the command names.

    If only a cluster has the storage, return the way to it, and the run.

    Raises:
        JobError: the job file is wrong; the run was killed before it wrote its job.
        NotStarted: as `find`.
    """
    target = _target(text, sets, to, echo)
    name = to or (target.known.launcher if target.known is not None else None)
    if name is not None and (reach := launcher_of(name).reach) is not None:
        return reach, target
    if target.job is not None:
        return target.job
    run = _located(target, to)[1].visible_run()
    if (job := job_at(run, run.job_key)) is None:
        raise JobError(f"{run.uri} contains no job: it was never started.\nName the job file.")
    return job


def _target(text: str, sets: Sequence[str], to: str | None, echo: Echo) -> Target:
    """Return the run, without its files.

    It is found by the arguments of the command and this user's known runs, newest first.
    """
    job = None
    if is_job_file(text):
        job = load_job(Path(text), sets)
    elif sets:
        raise JobError(
            f"--set changes a job file, and {text} is not a job file.\nName the job file, or omit --set."
        )
    runs, notes = known_runs()
    for note in notes:
        echo(f"note: {note}")
    for known in (each for each in runs if each.launcher in plugins()):
        for place in places_named(text, job) if to in (None, known.launcher) else ():
            if known.is_at(place):
                return Target(text, job, known, sets=tuple(sets), attempt=place.attempt)
    return Target(text, job, sets=tuple(sets))


def _located(target: Target, to: str | None) -> tuple[Launcher, Target]:
    known = target.known
    if to is not None and launcher_of(to).reach is not None:
        # The known run may be on another cluster than the one that the job file names; the file decides.
        return launcher_of(to), target if target.job is None else replace(target, known=None)
    if known is not None and (launcher := launcher_of(known.launcher)).reach is not None:
        # Only the cluster is sure to have the keys of an S3 storage.
        files = None if known.storage.is_s3 else _with_files(target).files
        # The storage may hold a later start, by another launcher.
        if files is None or files.launcher == known.launcher or files.started_at <= known.time:
            return launcher, target
    target = _with_files(target)
    if target.files is None:
        raise no_run(target.text, target.job, target.sets)
    return launcher_of(to) if to else launcher_in_storage(target.files), target


def _with_files(target: Target) -> Target:
    """Return the run with its files in the storage, if this machine sees it there."""
    known, places = target.known, places_named(target.text, target.job)
    if target.job is None and known is not None:  # its storage as this machine sees it
        places = [replace(place, storage=known.storage) for place in places if known.is_at(place)]
    if (found := run_at(places)) is None:
        return target
    run, place = found
    return replace(target, files=read_files(run), attempt=place.attempt)


def launcher_in_storage(files: RunFiles) -> Launcher:
    """Return the launcher recorded in the storage, or `local`, which needs only the files.

    It is `local` if this version does not have the recorded launcher, or if that launcher reads a storage in
    its cluster: another user submitted the run, or this process runs in its pod.
    """
    launcher = launcher_of(files.launcher if files.launcher in plugins() else "local")
    return launcher if launcher.reach is None else launcher_of("local")
