"""READY.json: the record of a staged data set. Only this module reads and writes it; it checks every type."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clustertrain.errors import DataError
from clustertrain.regular_file import read_file
from clustertrain.staging.folder_digest import Contents
from clustertrain.units import LARGEST_INTEGER, LATEST_S, shortened

_T = TypeVar("_T")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Marker:
    """A staged data set.

    Attributes:
        uri: its source, without what may be a secret.
        sha256: of the file that was fetched.
        size_bytes: of the file, or of all unpacked files.
        written_at: in unix seconds.
        contents: of an unpacked archive; None for a file.
    """

    uri: str
    sha256: str
    size_bytes: int
    written_at: float
    contents: Contents | None = None

    def write(self, path: Path) -> None:
        """Write the file, which does not exist yet, and sync it."""
        value: dict[str, Any] = {
            "uri": self.uri,
            "sha256": self.sha256,
            "bytes": self.size_bytes,
            "extract": self.contents is not None,
            "written_at": self.written_at,
        }
        if self.contents is not None:
            value |= {"files": self.contents.files, "digest": f"{self.contents.digest:064x}"}
        with path.open("xb") as file:
            file.write(json.dumps(value, indent=1).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_marker(path: Path) -> Marker:
    """
    Raises:
        OSError: it cannot be read; FileNotFoundError if it does not exist.
        DataError: it is not such a file.
    """
    try:
        value = json.loads(read_file(path))
        return _parsed(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged: {shortened(str(error), 200)}.\n"
            "Remove that folder; the data is then fetched again."
        ) from error


def _parsed(value: Any) -> Marker:
    if not isinstance(value, dict):
        raise TypeError(f"it contains {type(value).__name__}, not an object")
    size_bytes, contents = _count(value, "bytes"), None
    if _typed(value, "extract", bool):
        contents = Contents(_count(value, "files"), size_bytes, int(_sha256(value, "digest"), 16))
    written_at = _typed(value, "written_at", float)
    if not 0 <= written_at <= LATEST_S:
        raise ValueError(f"written_at is {written_at}, not a time in seconds")
    return Marker(_typed(value, "uri", str), _sha256(value, "sha256"), size_bytes, written_at, contents)


def _count(value: dict[str, Any], key: str) -> int:
    found = _typed(value, key, int)
    if not 0 <= found <= LARGEST_INTEGER:
        raise ValueError(f"{key} is {found}, not a number of {key}")
    return found


def _sha256(value: dict[str, Any], key: str) -> str:
    found = _typed(value, key, str)
    if not _SHA256.fullmatch(found):
        raise ValueError(f"{key} is {found!r}, not a sha256")
    return found


def _typed(value: dict[str, Any], key: str, kind: type[_T]) -> _T:
    found = value.get(key)
    if type(found) is not kind:
        raise TypeError(f"{key} is {'missing' if key not in value else repr(found)}")
    return found
