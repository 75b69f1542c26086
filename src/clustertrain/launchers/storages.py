"""The storage that the argument of `ls` names: a path, a URI, or that of a job file."""

from __future__ import annotations

import os
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.job.file import load_job
from clustertrain.observe.status import run_at
from clustertrain.run.command_line import command_on, typed
from clustertrain.run.run_address import addresses_of
from clustertrain.storage import Location

DEFAULT_STORAGE = "runs"
"""The storage of `ls` without an argument: that of a job file without `storage`."""


def storage_at(place: str) -> Location:
    """The storage that a path, a URI or a job file names.

    Raises:
        JobError: it is a job file, and it is wrong.
    """
    if os.path.isfile(place):
        return load_job(Path(place)).storage.location
    return Location(place if Location(place).is_s3 else str(Path(place).absolute()))


def no_run_at(place: str) -> JobError:
    """The error for a storage without a run; `place` as for `storage_at`."""
    storage = storage_at(place)
    if os.path.isfile(place):
        start = typed("run", place)
        return JobError(
            f"{storage.uri}, the storage of {place}, contains no run.\n"
            f"Start one with `{start}`, or `{start.on_job('submit')}`."
        )
    if (found := run_at(addresses_of(place))) is not None:
        storage_of_run = found[1].storage.uri
        return JobError(
            f"{place} is the folder of one run, and ls takes a storage: a folder of runs.\n"
            f"Use `{command_on(place, 'status')}`, or `{command_on(storage_of_run, 'ls')}`."
        )
    what = "contains no run" if storage.is_s3 or os.path.exists(place) else "does not exist"
    return JobError(
        f"{storage.uri} {what}.\nName a job file, or the `storage` of one; a plain `clustertrain ls` lists "
        "your runs in all storages."
    )
