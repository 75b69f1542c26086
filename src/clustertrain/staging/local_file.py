"""A local file as a source: a path or `file://`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from clustertrain.errors import DataError
from clustertrain.regular_file import NotAFile, open_file
from clustertrain.staging.source import CHUNK_BYTES, CutShort, Source, Stream
from clustertrain.storage.posix import refused


@dataclass(frozen=True)
class FileSource(Source):
    """A file of this machine, or of a file system it mounts."""

    path: Path

    def read_range(self, offset: int, end: int | None, validator: str | None) -> Stream:
        try:
            file = open_file(self.path)
        except NotAFile as error:
            raise DataError(f"{self.path} is not a regular file.\nGive a file or a folder.") from error
        except OSError as error:
            raise missing(self.path, error) from error
        found = os.fstat(file.fileno())
        now = _version(found)
        offset = file.seek(offset if now == validator else 0)
        return Stream(self._blocks(file, now), file.close, offset, found.st_size, found.st_size, now)

    def _blocks(self, file: BufferedReader, version: str) -> Iterator[bytes]:
        try:
            while data := file.read1(CHUNK_BYTES):
                if _version(self.path.stat()) != version:
                    raise CutShort(f"{self.path} changed while it was copied")
                yield data
        except OSError as error:
            raise CutShort(f"{type(error).__name__}: {error}") from error


def _version(found: os.stat_result) -> str:
    return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def missing(path: Path, error: OSError) -> DataError:
    """The DataError for local data that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return DataError(
            f"{path} does not exist on {os.uname().nodename} (working directory: {Path.cwd()}).\n"
            "Correct the path, or put the data on a path that every node sees."
        )
    return DataError(str(refused(path, "read", error)))
