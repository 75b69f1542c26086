"""Store: the protocol of both kinds of storage, `open_store`, and a probe of the operations that a run
needs."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from clustertrain.errors import JobError, StorageError
from clustertrain.storage.location import Location, local_path
from clustertrain.storage.posix import PosixStore
from clustertrain.storage.posix_tree import WrittenFile


class TreeFile(Protocol):
    """A file of a tree during its write; it is hashed meanwhile, so that it is not read back."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int: ...

    def flush(self) -> None: ...


class Tree(Protocol):
    """Files that become visible together, when the marker is committed.

    Only one writer may ever use the name of a tree. Every method raises StorageError if S3 refuses, and
    OSError if a file system refuses.
    """

    files: dict[str, WrittenFile]

    @property
    def handle(self) -> str:
        """For `Store.join_tree` of other processes."""

    def create(self, name: str) -> AbstractContextManager[TreeFile]:
        """A new file of the tree; it is durable (on disk, or uploaded) when the block ends."""

    def commit(self, marker: str, data: bytes) -> None:
        """Write the marker, which makes the tree visible.

        Raises:
            FileExistsError: the name is taken; that tree is not changed.
        """

    def abort(self) -> None:
        """Remove the written files as far as possible; `collect_leftovers` removes the rest later."""


class Store(Protocol):
    """Files under keys whose parts are separated by '/'. Every method raises StorageError on a refusal.

    Names that start with '.' belong to the store; `list` and `trees` omit them.
    """

    @property
    def location(self) -> Location:
        """The location of the store, with the options of its S3 client."""

    def uri(self, key: str) -> str:
        """The key for messages: a plain path on a file system, or s3://bucket/…"""

    def read_or_none(self, key: str) -> bytes | None:
        """The bytes of a key, or None if there is no such key."""

    def write_atomic(self, key: str, data: bytes) -> None:
        """Write or replace a key; a reader finds the old bytes or the new ones, never a mixture."""

    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Write a key that does not exist yet, atomically. Returns False if it exists and changes nothing.

        Of any number of callers on any number of hosts, exactly one gets True.
        """

    def list(self, prefix: str) -> list[str]:
        """The names directly under a prefix, sorted, or empty if there are none."""

    def remove(self, key: str) -> None:
        """Remove a key; a missing key is not an error."""

    def size_or_none(self, key: str) -> int | None:
        """The size of a key in bytes, or None if there is no such key."""

    def blocks(self, key: str, *, block_bytes: int = 1 << 20) -> Iterator[bytes]:
        """The bytes of a key in order, at most `block_bytes` of them in memory.

        Raises:
            FileNotFoundError: there is no such key; at the first block.
        """

    def local_folder(self, key: str) -> Path | None:
        """The path of a folder in this machine's file system, or None on S3."""

    def new_tree(self, key: str) -> Tree:
        """A tree that will be visible under `key`. Raises OSError if a file system refuses."""

    def join_tree(self, key: str, handle: str) -> Tree:
        """The tree that another process has begun, to add files: pass `files` to that process, which commits.
        It must be given their names before `commit`. Files of one name must not be created twice."""

    def trees(self, prefix: str, marker: str) -> builtins.list[str]:
        """The names of the trees under a prefix, sorted.

        On a file system every folder counts, so that a reader can report one whose marker was lost. On S3 a
        folder without its marker is still being written.
        """

    def remove_tree(self, key: str, marker: str) -> None:
        """Remove a tree so that a kill in between leaves no tree with a marker.

        Raises:
            OSError: a file system refuses; FileNotFoundError if it does not exist.
        """

    def collect_leftovers(
        self, prefix: str, marker: str, is_over: Callable[[str], bool]
    ) -> builtins.list[str]:
        """Remove what killed writers and removers left of trees under a prefix; returns the names.

        It also removes what another process is still writing, except of trees for whose name `is_over` is
        False. Such a process then fails to commit, or on S3 commits a tree without files.
        """


def open_store(location: Location | str) -> Store:
    """The store at a location; a str is a location without options: a path, `file://…` or `s3://bucket/prefix`.

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
            key, the HTTP status and the likely cause.
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
        "Use a server with read-after-write consistency, such as Amazon S3."
        if store.location.is_s3
        else "Use a file system with exclusive creation and atomic rename: "
        "local disk, NFS, Lustre, GPFS, CephFS."
    )
    return StorageError(
        f"{store.uri('')} lacks the consistency that a run needs: {what} ({store.uri(key)}).\n{remedy}"
    )
