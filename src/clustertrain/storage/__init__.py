"""Where runs are kept: small files under keys (`name/g1/attempts/1/claim.json`), behind one small protocol.

Every write that a reader can meet is whole or not there at all.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from clustertrain.errors import JobError, StorageError
from clustertrain.storage.posix import PosixStore

__all__ = ["PosixStore", "Store", "local_path", "open_store", "probe"]


class Store(Protocol):
    """Small files under keys that are separated by '/'. Every method raises StorageError when refused."""

    def uri(self, key: str) -> str:
        """Where the key is, for people and for streams: a plain path on a file system."""
        ...

    def read_or_none(self, key: str) -> bytes | None:
        """The bytes of a key; None when there is no such key."""
        ...

    def write_atomic(self, key: str, data: bytes) -> None:
        """Write or replace a key; a reader finds the old bytes or the new ones, never a mixture."""
        ...

    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Write a key that does not exist yet, whole; False when it does, and nothing is changed.

        Of any number of callers on any number of hosts, exactly one gets True.
        """
        ...

    def list(self, prefix: str) -> list[str]:
        """The names directly under a prefix, sorted; empty when there are none."""
        ...

    def remove(self, key: str) -> None:
        """Remove a key; nothing happens when it is not there."""
        ...


def open_store(uri: str) -> Store:
    """The store behind a path or a `file://` URI.

    Raises:
        JobError: a scheme that is not supported.
    """
    return PosixStore(local_path(uri, what="storage").absolute())


def local_path(uri: str, *, what: str) -> Path:
    """The path that a plain path or a `file://` URI names; `what` it is for stands in the error.

    Raises:
        JobError: another scheme.
    """
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", uri)
    if match is None:
        return Path(uri)
    scheme, parts = match[1].lower(), urlsplit(uri)
    if scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return Path(unquote(parts.path))
    if scheme == "s3":
        raise JobError(
            f"s3:// {what} comes with a later version of clustertrain.\nGive a path that every node sees."
        )
    raise JobError(f"{scheme}:// is no {what} that clustertrain knows.\nGive a path that every node sees.")


def probe(store: Store) -> None:
    """Write, read and remove a small file, in each of the ways that a run will.

    Raises:
        StorageError: names the path, the user and what the operating system said.
    """
    key = f".probe-{uuid.uuid4().hex}"
    try:
        _try_writes(store, key, uuid.uuid4().bytes)
    except StorageError:
        with suppress(StorageError):  # the first error is the one to tell
            store.remove(key)
        raise
    store.remove(key)


def _try_writes(store: Store, key: str, data: bytes) -> None:
    if not store.create_exclusive(key, data):
        raise _unfit(store, key, "a new file was said to exist already")
    if store.create_exclusive(key, b""):
        raise _unfit(store, key, "a file was created twice")
    if store.read_or_none(key) != data:
        raise _unfit(store, key, "other bytes were read than were written")
    store.write_atomic(key, data[::-1])
    if store.read_or_none(key) != data[::-1]:
        raise _unfit(store, key, "a file that was replaced reads as before")


def _unfit(store: Store, key: str, what: str) -> StorageError:
    return StorageError(
        f"{store.uri('')} does not keep files as a run needs it: {what} ({store.uri(key)}).\n"
        "Use a file system with exclusive creation and atomic rename: local disk, NFS, Lustre, GPFS, CephFS."
    )
