"""Finds the launcher of the run that a command names.

    --to ─▶ else the launcher recorded in the storage ─▶ else the launcher of this user's newest start
         ─▶ else, for a job file, the launcher whose cluster has the run: `kubectl apply` records no start

The storage is authoritative. This machine cannot always read it: it may be a volume of a cluster. Then the
newest start by this user determines the launcher.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.file import load_job
from clustertrain.job.launcher_plugins import plugins
from clustertrain.job.model import Job
from clustertrain.launchers.known_runs import KnownRun, known_runs, record_known_run
from clustertrain.launchers.launcher import Launcher, launcher_of, usable_launcher
from clustertrain.launchers.storages import DEFAULT_STORAGE
from clustertrain.launchers.target import Echo, Reach, Target
from clustertrain.observe.status import (
    RunFiles,
    is_job_file,
    no_run,
    places_named,
    read_files,
    run_at,
)
from clustertrain.run.recorded_job import job_at
from clustertrain.run.run_address import RunAddress, addresses_of
from clustertrain.storage import Location


def find(text: str, sets: Sequence[str], to: str | None, echo: Echo) -> tuple[Launcher, Target]:
    """Return the launcher of the run, and the run.

    Args:
        text: a job file, a folder as for `addresses_of`, or the name of a run that this user started.
        to: the name of the launcher if the command line gives it.
        echo: called with a note for each file of a known run that cannot be used.

    Raises:
        JobError: the job file is wrong; `sets` without a job file; several runs have that name.
        NotStarted: there is no such run.
        ClusterError: it was submitted from another machine, and its storage is not visible here.
    """
    return _located(_target(text, sets, to, echo), to, echo)


def find_job(text: str, sets: Sequence[str], to: str | None, echo: Echo) -> tuple[Reach, Target] | Job:
    """The job that a command names: of a job file, or the newest one of a run. If only a cluster has the
    storage, returns the way to it, and the run.

    Raises:
        JobError: the job file is wrong; the run was killed before it wrote its job.
        NotStarted, ClusterError: as `find`.
    """
    target = _target(text, sets, to, echo)
    name = to or (target.known.launcher if target.known is not None else None)
    if name is not None and (reach := launcher_of(name).reach) is not None:
        return reach, target
    if target.job is not None:
        return target.job
    run = _located(target, to, echo)[1].visible_run()
    if (job := job_at(run, run.job_key)) is None:
        raise JobError(f"{run.uri} contains no job: it was never started.\nName the job file.")
    return job


def _located(target: Target, to: str | None, echo: Echo) -> tuple[Launcher, Target]:
    newest = target.known
    if to is not None and launcher_of(to).reach is not None:
        # The known run may be on another cluster than the one that the job file names; the file decides.
        return launcher_of(to), target if target.job is None else replace(target, known=None)
    target = _with_files(target)
    if (
        newest is not None
        and launcher_of(newest.launcher).reach is not None
        and not _is_newer(target.files, newest)
    ):
        return launcher_of(newest.launcher), replace(target, files=None)
    if target.files is None:
        asked = target.job if to is None and newest is None else None
        if asked is not None and (found := _in_a_cluster(target, asked, echo)) is not None:
            return found
        raise _not_found(target)
    return launcher_of(to) if to else launcher_in_storage(target.files), target


def launcher_in_storage(files: RunFiles) -> Launcher:
    """The launcher recorded in the storage. It is `local`, which needs only the files, if this version does
    not have it, or if it reads a storage in its cluster: another user submitted the run, or this process runs
    in its pod."""
    launcher = launcher_of(files.launcher if files.launcher in plugins() else "local")
    return launcher if launcher.reach is None else launcher_of("local")


def _target(text: str, sets: Sequence[str], to: str | None, echo: Echo) -> Target:
    """The run by the arguments of the command and this user's known runs, without its files."""
    job = _job_of(text, sets)
    known = _newest_known(text, job, to, echo)
    places = _places_in(known, addresses_of(text)) if job is None and known is not None else []
    return Target(text, job, known, sets=tuple(sets), attempt=places[0].attempt if places else None)


def _job_of(text: str, sets: Sequence[str]) -> Job | None:
    if is_job_file(text):
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
    folders = {_folder(each.storage): f"  {each.uri}, of {each.job_file}" for each in named}
    if folders and _is_name(text) and (here := run_at(addresses_of(f"{DEFAULT_STORAGE}/{text}"))) is not None:
        folders.setdefault(_folder(here[1].storage), f"  {here[0].store.uri(text)}, in this folder")
    if job is None and len(folders) > 1:
        listed = "\n".join(folders.values())
        raise JobError(
            f"Several runs have the name {text}:\n{listed}\nName the folder or the job file of one."
        )
    return named[0] if named else None


def _folder(storage: Location) -> tuple[str | None, str]:
    """What two storages have in common if they are one."""
    return storage.endpoint, storage.uri if storage.is_s3 else os.path.realpath(storage.uri)


def _in_a_cluster(target: Target, job: Job, echo: Echo) -> tuple[Launcher, Target] | None:
    """The run of a job file, as a cluster has it; it is known from now on."""

    def note(text: str) -> None:
        echo(f"note: {text}")

    for launcher in (usable_launcher(name, note) for name in plugins()):
        if (
            launcher is None
            or launcher.reach is None
            or (known := launcher.reach.found(launcher.merged(job), target.text, echo)) is None
        ):
            continue
        echo(f"note: {known.name} was not submitted from this machine; {known.where} has it")
        if (problem := record_known_run(known)) is not None:
            echo(f"note: {problem}")
        return launcher, replace(target, known=known)
    return None


def _is_named(known: KnownRun, text: str, job: Job | None) -> bool:
    """Whether the text names this known run."""
    if job is not None:
        return known.name == job.name and known.is_in(job.storage.location)
    return known.name == text if _is_name(text) else any(map(known.is_at, addresses_of(text)))


def _is_name(text: str) -> bool:
    return "/" not in text and not os.path.lexists(text)


def _with_files(target: Target) -> Target:
    """The run with its files in the storage, if this machine sees it there."""
    known, places = target.known, places_named(target.text, target.job)
    if target.job is None and known is not None:
        places = (
            [RunAddress(known.storage, known.name)] if _is_name(target.text) else _places_in(known, places)
        )
    if known is not None and launcher_of(known.launcher).reach is not None and places[0].storage.is_s3:
        return target  # only the cluster is sure to have the keys of that S3 storage
    if (found := run_at(places)) is None:
        return target
    run, place = found
    return replace(target, files=read_files(run), attempt=place.attempt)


def _places_in(known: KnownRun, places: Sequence[RunAddress]) -> list[RunAddress]:
    """The places that are this run, in its storage as this machine sees it."""
    return [replace(place, storage=known.storage) for place in places if known.is_at(place)]


def _is_newer(files: RunFiles | None, known: KnownRun) -> bool:
    """Whether the storage holds a later start than the known one, by another launcher."""
    return files is not None and files.launcher != known.launcher and files.started_at > known.time


def _not_found(target: Target) -> JobError | ClusterError:
    known = target.known
    if known is not None and not known.started_here:
        return ClusterError(
            f"{known.name} was started from {known.host} on {known.where}, and its storage "
            f"{known.storage.uri} is not visible from {socket.gethostname()}.\n"
            f"Run this command on {known.host}, or where that storage is mounted."
        )
    return no_run(target.text, target.job, target.sets)
