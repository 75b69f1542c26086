"""Where data sets lie once they are staged, and by what name.

    <into>/<key>/READY.json     what it is and where it came from; written last
                 content/       the file under its own name, or the unpacked folder
    <into>/.leases/<key>.<n>    who brings it (lease.py)
    <into>/.<key>.<token>.part/ what one holder has so far (partial_file.py); the next one continues there

The key names the content: by the sha256 when the job gives one, wherever the bytes come from; by path, size
and times of change for a local file without one, so that a changed file is another data set; by the URI
alone for the web and S3, whose first answer is kept, so that a restart trains on the data it began with (give
a sha256 to name a version). A folder is used where it lies and never copied.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from clustertrain.errors import DataError
from clustertrain.node.cache import cache_folder
from clustertrain.staging.file_and_http import is_http, missing
from clustertrain.storage.location import Location, local_path

MARKER = "READY.json"


def data_folder(shared: Path | None, per: str) -> Path:
    """The folder for data that is kept once per "cluster" or once per "node".

    `shared` is the data folder of the storage (`RunDir.data_path`), None where the nodes share none: then
    data of the cluster comes once per node as well, into the node's cache.
    """
    return shared if per == "cluster" and shared is not None else cache_folder() / "data"


@dataclass(frozen=True)
class Ready:
    """A data set that is there: where, and the bytes of the file or of all files unpacked."""

    path: Path
    size_bytes: int


@dataclass(frozen=True)
class Entry:
    """One data set in one folder."""

    location: Location
    sha256: str | None
    extract: bool
    into: Path
    file_name: str
    key: str

    @classmethod
    def of(cls, location: Location, sha256: str | None, extract: bool, into: Path) -> Entry:
        """
        Raises:
            DataError: it is a local file, and is not there.
            JobError: a scheme that is not supported.
        """
        sha256 = sha256.lower() if sha256 else None
        file_name = _file_name(location)
        if sha256 is not None:
            identity: list[Any] = ["sha256", sha256]
        elif location.is_s3:
            identity = ["s3", location.endpoint, *location.bucket_and_key]
        elif is_http(location.uri):
            identity = ["url", location.uri]
        else:
            identity = ["file", *_local_identity(location.uri)]
        identity += [extract, None if extract else file_name]
        key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:40]
        return cls(location, sha256, extract, into, file_name, key)

    @property
    def folder(self) -> Path:
        return self.into / self.key

    def part(self, token: str) -> Path:
        """What the holder of that token has so far."""
        return self.into / f".{self.key}.{token}.part"

    def parts(self) -> list[Path]:
        """What all holders left or still fill."""
        return sorted(self.into.glob(f".{self.key}.*.part"))

    @property
    def leases(self) -> Path:
        return self.into / ".leases"

    def content(self, folder: Path) -> Path:
        return folder / "content" if self.extract else folder / "content" / self.file_name

    def ready(self) -> Ready | None:
        """The data set, when it is there and whole. Two looks at the disk, no lease, no network."""
        path = self.content(self.folder)
        try:
            size_bytes = int(self.marker()["bytes"])
            found_bytes = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.unreadable(error) from error
        if not self.extract and found_bytes != size_bytes:
            return None  # someone cut it; it is brought again
        return Ready(path, size_bytes)

    def marker(self) -> dict[str, Any]:
        """What READY.json says: uri, sha256 of the file, bytes, and of an unpacked one files and digest."""
        value: dict[str, Any] = json.loads((self.folder / MARKER).read_bytes())
        return value

    def unreadable(self, error: Exception) -> DataError:
        return DataError(
            f"{self.folder} cannot be read: {type(error).__name__}: {error}.\n"
            "Remove that folder, and the data is brought again."
        )


def _file_name(location: Location) -> str:
    """The last part of the path, in characters that every file system takes."""
    uri = location.uri
    if location.is_s3:
        path = location.bucket_and_key[1]
    else:
        path = unquote(urlsplit(uri).path if "://" in uri else uri)
    return re.sub(r"[^A-Za-z0-9._-]", "_", path.rpartition("/")[2])[-100:].lstrip(".") or "data"


def _local_identity(uri: str) -> tuple[str, int, int, int]:
    path = local_path(uri, what="data")
    try:
        found = path.stat()
    except OSError as error:
        raise missing(path, error) from error
    return str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns


def local_folder(location: Location) -> Path | None:
    """The folder that a data set is, which is used where it lies; None where it is a file, or not local."""
    if is_http(location.uri) or location.is_s3:
        return None
    path = local_path(location.uri, what="data")
    return path.absolute() if path.is_dir() else None
