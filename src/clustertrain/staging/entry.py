"""Paths and keys of staged data sets.

    <into>/<key>/READY.json       description and source; written last
    <into>/<key>/content/         the file under its own name, or the unpacked folder
    <into>/.leases/<key>.<n>      the process that fetches it (lease.py)
    <into>/.<key>.<token>.part/   the partial download of one holder, which the next one continues (part.py)

The key identifies the content: by the sha256 if the job gives one, wherever the bytes come from; by path,
size and modification times for a local file without one, so that a changed file is another data set; only by
the URI for the web and S3, where the first download is kept, so that a restart trains on the same data (give
a sha256 to select a version). A folder is used in place and never copied.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from clustertrain.node.user_folders import node_data_folder
from clustertrain.staging.source import missing
from clustertrain.storage import PosixStore
from clustertrain.storage.location import Location, local_path
from clustertrain.storage.record_file import RecordFile

MARKER = "READY.json"
_NOT_IN_A_NAME = re.compile(r"[/\x00-\x1f\x7f]")  # %2F in a URL, and what would spoil a log


def data_folder(shared: Path | None, per: str, scratch: str | None = None) -> Path:
    """Return the folder for data with one copy per "cluster" or per "node".

    `shared` is the data folder of the storage (`RunDir.data_path`), or None if the nodes share no folder:
    then each node keeps the data of the cluster as well. `scratch` is the job's: see node_data_folder.

    Raises:
        StorageError: the scratch folder of this node cannot be used.
    """
    return shared if per == "cluster" and shared is not None else node_data_folder(scratch)


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


@dataclass(frozen=True)
class Ready:
    """A staged data set: its path, and the size of the file or of all unpacked files."""

    path: Path
    size_bytes: int


@dataclass(frozen=True)
class StagedData:
    """One data set in one folder."""

    location: Location
    sha256: str | None
    extract: bool
    into: Path
    file_name: str
    key: str

    @classmethod
    def of(cls, location: Location, sha256: str | None, extract: bool, into: Path) -> StagedData:
        """Create the entry of a data set.

        Raises:
            DataError: it is a local file that does not exist.
            JobError: a scheme that is not supported.
        """
        sha256 = sha256.lower() if sha256 else None
        file_name = _file_name(location)
        if sha256 is not None:
            identity: list[Any] = ["sha256", sha256]
        elif location.is_s3:
            identity = ["s3", location.endpoint, *location.bucket_and_key]
        elif location.is_http:
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
        """Return the partial download of the holder with this token."""
        return self.into / f".{self.key}.{token}.part"

    def parts(self) -> list[Path]:
        """Return the partial downloads of all holders, current and earlier ones."""
        return sorted(self.into.glob(f".{self.key}.*.part"))

    @property
    def leases(self) -> Path:
        return self.into / ".leases"

    def content(self, folder: Path) -> Path:
        return folder / "content" if self.extract else folder / "content" / self.file_name

    def ready(self) -> Ready | None:
        """Return the data set if it is staged completely, otherwise None.

        This takes two file system operations, no lease and no network.

        Raises:
            StorageError: its marker is damaged, or cannot be read.
        """
        marker = RecordFile(PosixStore(self.folder), MARKER, Marker).read()
        path = self.content(self.folder)
        found_bytes = PosixStore(path.parent).size_or_none(path.name)
        if marker is None or found_bytes is None:
            return None
        if not self.extract and found_bytes != marker.bytes:
            return None  # the file was cut; it is fetched again
        return Ready(path, marker.bytes)


def _file_name(location: Location) -> str:
    """Return the last part of the path, as it is; in a URL, percent-encoded characters are decoded.

    Only what cannot be in a file name is replaced.
    """
    uri = location.uri
    if location.is_s3:
        name = location.bucket_and_key[1].rpartition("/")[2]
    elif "://" in uri:
        name = unquote(urlsplit(uri).path.rpartition("/")[2])
    else:
        name = Path(uri).name
    name = _NOT_IN_A_NAME.sub("_", name)
    return "data" if name in ("", ".", "..") else name


def _local_identity(uri: str) -> tuple[str, int, int, int]:
    path = local_path(uri, what="data")
    try:
        found = path.stat()
    except OSError as error:
        raise missing(path, error) from error
    return str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns


def local_folder(location: Location) -> Path | None:
    """Return the folder of a data set that is a local folder, which is used in place; otherwise None."""
    if location.is_http or location.is_s3:
        return None
    path = local_path(location.uri, what="data")
    return path.absolute() if path.is_dir() else None
