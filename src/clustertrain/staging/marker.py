"""READY.json: the record of a staged data set. Only this module reads and writes it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import DataError
from clustertrain.node.regular_file import read_file
from clustertrain.node.units import shortened
from clustertrain.storage.record_file import encoded, json_object, typed


@dataclass(frozen=True)
class Marker:
    """A staged data set.

    Attributes:
        uri: its source, without what may be a secret.
        sha256: of the file that was fetched.
        bytes: of the file, or of all unpacked files.
        extract: whether the file was unpacked.
        written_at: in unix seconds.
    """

    uri: str
    sha256: str
    bytes: int
    extract: bool
    written_at: float

    def write(self, path: Path) -> None:
        """Write the file, which does not exist yet, and sync it."""
        with path.open("xb") as file:
            file.write(encoded(self))
            file.flush()
            os.fsync(file.fileno())


def read_marker(path: Path) -> Marker:
    """Read the marker of a data set.

    Raises:
        OSError: it cannot be read; FileNotFoundError if it does not exist.
        DataError: it is not such a file.
    """
    try:
        return typed(Marker, json_object(read_file(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged: {shortened(str(error), 200)}.\n"
            "Remove that folder; the data is then fetched again."
        ) from error
