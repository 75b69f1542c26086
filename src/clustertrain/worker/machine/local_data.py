"""The data sets of a job on this machine: in a worker, for the check of the code, and for `run --debug`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clustertrain.errors import StorageError
from clustertrain.job.model import Job
from clustertrain.staging.entry import StagedData, data_folder, local_folder
from clustertrain.staging.source import masked
from clustertrain.staging.stage import stage
from clustertrain.storage import open_store
from clustertrain.storage.location import local_path

_UNPACKED_BYTES = 64 << 20  # a larger file is not staged for a check of seconds


def staged(job: Job, name: str, into: Path, **options: Any) -> Path:
    """Stage a data set of a job into this folder, and return its path; `options`: as in `stage`."""
    entry, location = job.data[name], job.data_location(name)
    return stage(name, location, sha256=entry.sha256, extract=entry.extract, into=into, **options)


def stage_here(job: Job, on_event: Callable[[dict[str, Any]], None]) -> dict[str, Path]:
    """Stage each data set of a job where a run on this machine stages it, and return the paths.

    Raises:
        as clustertrain.staging.stage.stage
    """
    return {
        name: staged(job, name, _into(job, entry.per), on_event=on_event) for name, entry in job.data.items()
    }


def data_at_hand(job: Job, scratch: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the paths of the data sets that are here, and the names of the others with the reason.

    Reads what is staged and what is local, and downloads nothing. A small local archive is unpacked into
    `scratch`, so that the check leaves nothing in the job's storage.

    Raises:
        DataError: a local file does not exist, does not verify, or is not an archive.
    """
    found = {name: _at_hand(job, name, scratch) for name in job.data}
    missing = [f"{name} ({masked(job.data[name].uri)})" for name in job.data if found[name] is None]
    return {name: path for name, path in found.items() if path is not None}, missing


def _at_hand(job: Job, name: str, scratch: Path) -> Path | None:
    data, location = job.data[name], job.data_location(name)
    try:
        into = _into(job, data.per)
    except StorageError:  # this machine may not be a node of the job, with its scratch folder
        into = scratch
    entry = StagedData.of(location, data.sha256, data.extract, into)
    if (ready := entry.ready()) is not None:
        return ready.path
    if location.is_s3 or location.is_http:
        return None
    path = local_path(location.uri, what="data")
    if local_folder(location) is None and path.stat().st_size > _UNPACKED_BYTES:
        return None if data.extract else path.absolute()
    return staged(job, name, scratch)


def _into(job: Job, per: str) -> Path:
    return data_folder(open_store(job.storage.location).local_folder("data"), per, job.scratch)
