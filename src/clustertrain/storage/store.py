"""Store: the protocol of both kinds of storage, how one is opened, and a test of what a run needs of it."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from clustertrain.errors import JobError, StorageError
from clustertrain.storage.location import Location, local_path
from clustertrain.storage.posix import PosixStore
from clustertrain.storage.posix_tree import WrittenFile


class TreeFile(Protocol):
    """A file of a tree while it is written; hashed on the way, so that nothing is read back for that."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int: ...

    def flush(self) -> None: ...


class Tree(Protocol):
    """Files that become visible together, when the marker is committed.

    Only one writer may ever use the name of a tree. Every method raises StorageError when S3 refuses, and
    OSError when a file system does.
    """

    files: dict[str, WrittenFile]

    def create(self, name: str) -> AbstractContextManager[TreeFile]:
        """A new file of the tree; it is safe (on disk, or with the server) when the block ends."""
        ...

    def commit(self, marker: str, data: bytes) -> None:
        """Write the marker last: with it the tree is there, without it nothing is.

        Raises:
            FileExistsError: the name is taken; that tree is untouched.
        """
        ...

    def abort(self) -> None:
        """Remove what was written, as far as possible; `collect_leftovers` removes the rest one day."""
        ...


class Store(Protocol):
    """Files under keys that are separated by '/'. Every method raises StorageError when refused.

    Names that begin with '.' are the store's own; `list` and `trees` leave them out.
    """

    @property
    def location(self) -> Location:
        """Where the store is, and how it is reached."""
        ...

    def uri(self, key: str) -> str:
        """Where the key is, for people: a plain path on a file system, or s3://bucket/…"""
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

    def size_or_none(self, key: str) -> int | None:
        """The bytes that a key has; None when there is no such key."""
        ...

    def blocks(self, key: str, *, block_bytes: int = 1 << 20) -> Iterator[bytes]:
        """The bytes of a key in order, at most `block_bytes` of them in memory.

        Raises:
            FileNotFoundError: there is no such key; at the first block.
        """
        ...

    def local_folder(self, key: str) -> Path | None:
        """Where a folder is in this machine's file system; None on S3."""
        ...

    def new_tree(self, key: str) -> Tree:
        """A tree that will be visible under `key`. Raises OSError when a file system refuses."""
        ...

    def trees(self, prefix: str, marker: str) -> builtins.list[str]:
        """The names of the trees under a prefix, sorted.

        On a file system every folder counts, so that a reader tells of one whose marker was lost. On S3 a
        folder without its marker is one that is being written.
        """
        ...

    def remove_tree(self, key: str, marker: str) -> None:
        """Remove a tree so that a kill in between leaves nothing that looks whole.

        Raises:
            OSError: a file system refuses; FileNotFoundError when it is not there.
        """
        ...

    def collect_leftovers(self, prefix: str, marker: str) -> builtins.list[str]:
        """Remove what killed writers and removers left of trees under a prefix; returns the names.

        Only for the one who may write there: what another one is still writing goes, too.
        """
        ...


def open_store(location: Location | str) -> Store:
    """The store at a location; a str is one without options: a path, `file://…` or `s3://bucket/prefix`.

    Raises:
        JobError: a scheme that is not supported, or no bucket.
    """
    if isinstance(location, str):
        location = Location(location)
    if not location.is_s3:
        return PosixStore(local_path(location.uri, what="storage").absolute())
    if not location.bucket_and_key[0]:
        raise JobError(f"{location.uri} names no bucket.\nGive s3://bucket/prefix.")
    from clustertrain.storage.s3 import S3Store

    return S3Store(location)


def probe(store: Store) -> None:
    """Write, read and remove a small file, in each of the ways that a run will.

    Raises:
        StorageError: names the path, the user and what the operating system said; on S3 the action, the key,
            the HTTP status and the likely cause.
    """
    key, data = f".probe-{uuid.uuid4().hex}", uuid.uuid4().bytes
    if not store.create_exclusive(key, data):
        raise _unfit(store, key, "a new file was said to exist already")
    try:
        _try_writes(store, key, data)
    except StorageError:
        with suppress(StorageError):  # the first error is the one to tell
            store.remove(key)
        raise
    store.remove(key)


def _try_writes(store: Store, key: str, data: bytes) -> None:
    if store.create_exclusive(key, b""):
        raise _unfit(store, key, "a file was created twice")
    if store.read_or_none(key) != data:
        raise _unfit(store, key, "other bytes were read than were written")
    store.write_atomic(key, data[::-1])
    if store.read_or_none(key) != data[::-1]:
        raise _unfit(store, key, "a file that was replaced reads as before")


def _unfit(store: Store, key: str, what: str) -> StorageError:
    remedy = (
        "Use a server on which a read finds what was written before it, as Amazon S3 and most others are."
        if store.location.is_s3
        else "Use a file system with exclusive creation and atomic rename: "
        "local disk, NFS, Lustre, GPFS, CephFS."
    )
    return StorageError(
        f"{store.uri('')} does not keep files as a run needs it: {what} ({store.uri(key)}).\n{remedy}"
    )
