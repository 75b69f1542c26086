"""The run that a folder belongs to, and the runs in a storage.

The folder is the folder of a run, of a generation or of an attempt, as folder/ names them. Every folder
that clustertrain prints names its run in a command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import StorageError
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.storage import Location, Store

_GENERATION = re.compile(r"g\d+")


@dataclass(frozen=True)
class RunAddress:
    """A run in a storage.

    Attributes:
        generation: None for the newest.
        attempt: None if the folder is not that of an attempt.
    """

    storage: Location
    name: str
    generation: int | None = None
    attempt: int | None = None

    def run(self) -> RunDir:
        """Return the generation, whether or not it exists."""
        newest = RunDir.newest(self.storage, self.name)
        return newest if self.generation is None else newest.at(self.generation)


def addresses_of(folder: str) -> list[RunAddress]:
    """Return the runs that a folder may name.

    The folder is a path or an S3 URI, absolute or relative to the current folder.

    A run may have the name `g1`, so `…/g1` may be a run, or a generation of a run: the first place with a run
    is the right one.
    """
    path = folder.rstrip("/") if Location(folder).is_s3 else os.path.normpath(Path(folder).absolute())
    places = [RunAddress(*_split(path))]
    match path.split("/"):
        case [*run, generation, "attempts", attempt] if attempt.isdecimal():
            places += _in_generation(run, generation, int(attempt))
        case [*run, generation, "attempts"] | [*run, generation]:
            places += _in_generation(run, generation, None)
    return places


def _in_generation(run: list[str], generation: str, attempt: int | None) -> list[RunAddress]:
    if _GENERATION.fullmatch(generation) is None:
        return []
    return [RunAddress(*_split("/".join(run)), int(generation[1:]), attempt)]


def _split(path: str) -> tuple[Location, str]:
    storage, _, name = path.rpartition("/")
    return Location(storage or "/"), name


def run_names(store: Store, skip: Callable[[StorageError], None] | None = None) -> list[str]:
    """Return the runs of a storage: folders that contain a generation.

    Args:
        skip: called with the error of each folder that cannot be listed, such as another user's. Without it
            the first such error is raised.
    """
    return [name for name in sorted(store.list("")) if _has_generation(store, name, skip)]


def _has_generation(store: Store, name: str, skip: Callable[[StorageError], None] | None) -> bool:
    try:
        return any(map(_GENERATION.fullmatch, store.list(name)))
    except StorageError as error:
        if skip is None:
            raise
        skip(error)
        return False
