"""A local file as a source: a path or `file://`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import DataError
from clustertrain.regular_file import NotAFile, open_file
from clustertrain.staging.source import Stream
from clustertrain.storage.posix import refused


@dataclass(frozen=True)
class FileSource:
    """A file of this machine, or of a file system it mounts."""

    path: Path
    retry_s: None = None
    supports_ranges: bool = False

    def open(self, offset: int, validator: str | None, end: int | None = None) -> Stream:
        try:
            file = open_file(self.path)
        except NotAFile as error:
            raise DataError(f"{self.path} is not a regular file.\nGive a file or a folder.") from error
        except OSError as error:
            raise missing(self.path, error) from error
        found = os.fstat(file.fileno())
        now = self._validator(found)
        offset = offset if now == validator else 0
        file.seek(offset)
        return Stream(file, offset, found.st_size, found.st_size, now)

    def validator(self) -> str:
        """The validator that `open` would return now."""
        try:
            return self._validator(self.path.stat())
        except OSError as error:
            raise missing(self.path, error) from error

    @staticmethod
    def _validator(found: os.stat_result) -> str:
        return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def missing(path: Path, error: OSError) -> DataError:
    """The DataError for local data that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return DataError(
            f"{path} does not exist on {os.uname().nodename} (working directory: {Path.cwd()}).\n"
            "Correct the path, or put the data on a path that every node sees."
        )
    return DataError(str(refused(path, "read", error)))
