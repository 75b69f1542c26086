"""Store: both kinds of storage, `open_store`, and a probe of the operations that a run needs."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from clustertrain.errors import JobError, StorageError
from clustertrain.storage.location import Location, local_path
from clustertrain.storage.posix import PosixStore
from clustertrain.storage.posix_tree import PosixTree

if TYPE_CHECKING:
    from clustertrain.storage.s3 import S3Store
    from clustertrain.storage.s3_tree import S3Tree


Store: TypeAlias = "PosixStore | S3Store"
"""The two have the same methods, which PosixStore explains."""
Tree: TypeAlias = "PosixTree | S3Tree"
"""The two have the same methods, which PosixTree explains."""


def open_store(location: Location | str) -> Store:
    """Return the store at a location.

    A str is a location without options: a path, `file://…` or `s3://bucket/prefix`.

    Raises:
        JobError: a scheme that is not supported, or no bucket.
    """
    if isinstance(location, str):
        location = Location(location)
    if not location.is_s3:
        return PosixStore(local_path(location.uri, what="storage").absolute())
    if not location.bucket_and_key[0]:
        raise JobError(f"{location.uri} contains no bucket.\nGive s3://bucket/prefix.")
    from clustertrain.storage.s3 import S3Store

    return S3Store(location)


def probe(store: Store) -> None:
    """Write, read and remove a small file, with every operation that a run uses.

    Raises:
        StorageError: names the path, the user and the error of the operating system; on S3 the action, the
            key and the HTTP status.
    """
    key, data = f".probe-{uuid.uuid4().hex}", uuid.uuid4().bytes
    if not store.create_exclusive(key, data):
        raise _unfit(store, key, "the creation of a new file was refused: it exists already")
    try:
        _try_writes(store, key, data)
    except StorageError:
        with suppress(StorageError):  # the first error is the one to report
            store.remove(key)
        raise
    store.remove(key)


def _try_writes(store: Store, key: str, data: bytes) -> None:
    if store.create_exclusive(key, b""):
        raise _unfit(store, key, "a file was created twice")
    if store.read_or_none(key) != data:
        raise _unfit(store, key, "the bytes that were read differ from those that were written")
    store.write_atomic(key, data[::-1])
    if store.read_or_none(key) != data[::-1]:
        raise _unfit(store, key, "after a file was replaced, its old bytes were read")


def _unfit(store: Store, key: str, what: str) -> StorageError:
    remedy = (
        "Use a server with conditional writes (If-None-Match) and read-after-write consistency, such as "
        "Amazon S3."
        if store.location.is_s3
        else "Use a file system with exclusive creation and atomic rename: "
        "local disk, NFS, Lustre, GPFS, CephFS."
    )
    return StorageError(
        f"{store.uri('')} lacks the consistency that a run needs: {what} ({store.uri(key)}).\n{remedy}"
    )
