"""A local file as a source: a path or `file://`."""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import DataError
from clustertrain.regular_file import NotAFile, open_file
from clustertrain.staging.source import CHUNK_BYTES, CutShort, NotThatRange, Source, Stream
from clustertrain.storage.posix import refused


@dataclass(frozen=True)
class FileSource(Source):
    """A file of this machine, or of a file system it mounts."""

    path: Path

    def read_range(self, offset: int, end: int, validator: str | None) -> Stream:
        try:
            with open_file(self.path) as file:
                found = os.fstat(file.fileno())
        except NotAFile as error:
            raise DataError(f"{self.path} is not a regular file.\nGive a file or a folder.") from error
        except OSError as error:
            raise missing(self.path, error) from error
        if validator not in (None, _version(found)):
            raise NotThatRange(f"{self.path} changed while it was copied")
        blocks = self._blocks(offset, _version(found))
        return Stream(blocks, blocks.close, found.st_size, _version(found))

    def _blocks(self, offset: int, version: str) -> Generator[bytes]:
        try:
            with open_file(self.path) as file:
                file.seek(offset)
                while data := file.read1(CHUNK_BYTES):
                    if _version(self.path.stat()) != version:
                        raise NotThatRange(f"{self.path} changed while it was copied")
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
