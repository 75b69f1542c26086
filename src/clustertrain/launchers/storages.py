"""The storage that the argument of `ls` names: a path, a URI, or that of a job file."""

from __future__ import annotations

import os
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.job.file import load_job
from clustertrain.run.command_line import command_on
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
    return JobError(
        f"{storage_at(place).uri} contains no run.\n"
        f"ls takes a job file, or a storage: a folder of runs. Of one run: `{command_on(place, 'status')}`."
    )
