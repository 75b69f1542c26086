"""A tree of files on S3: the files are uploaded while they are written; the marker is put last.

boto3's transfers read from an existing file. Here torch.save writes directly into the upload.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from clustertrain.errors import StorageError
from clustertrain.storage.posix_tree import WrittenFile
from clustertrain.storage.s3_objects import S3Objects

NEWEST = ".newest"
PART_BYTES = 16 << 20
PARTS_IN_FLIGHT = 4
_PARTS_BEFORE_GROWTH = 5000  # of the 10,000 that an upload may have: 80 GB in small parts, 5 TB in all
_GROWN = 64
_ABORT_S = 10.0  # the next writer collects what cannot be removed in this time


def part_bytes(number: int) -> int:
    """The size of the part with this number, from 1 on. S3 allows 10,000 parts and 5 TiB in all."""
    return PART_BYTES if number <= _PARTS_BEFORE_GROWTH else PART_BYTES * _GROWN


class S3Tree:
    """Files under `key`. A killed writer leaves files without a marker, which readers ignore."""

    handle = "final"

    def __init__(self, objects: S3Objects, key: str, create: Callable[[str, bytes], bool]) -> None:
        self.files: dict[str, WrittenFile] = {}
        self._objects, self._key, self._create = objects, key, create
        self._begun: list[str] = []

    @contextmanager
    def create(self, name: str) -> Iterator[Upload]:
        """A new file of the tree; it is uploaded when the block ends."""
        key = f"{self._key}/{name}"
        self._begun.append(key)
        upload = Upload(self._objects, key)
        try:
            yield upload
            self.files[name] = upload.finish()
        except BaseException:
            upload.abort()
            raise

    def commit(self, marker: str, data: bytes) -> None:
        """Put the marker, unless the name is taken or a file of the tree no longer exists."""
        for name in self.files:
            if self._objects.size_or_none(key := f"{self._key}/{name}") is None:
                raise FileNotFoundError(f"{key} was removed while the tree was written")
        self._begun.clear()  # from here on there is a tree, ours or another's: `abort` must not remove it
        if not self._create(f"{self._key}/{marker}", data):
            raise FileExistsError(f"{self._objects.uri(self._key)} exists already")
        self.files[marker] = WrittenFile(len(data), hashlib.sha256(data).hexdigest())
        parent, _, name = self._key.rpartition("/")
        self._objects.write_atomic(f"{parent}/{NEWEST}", name.encode())

    def abort(self) -> None:
        """Remove the written files, which were never visible."""
        with suppress(StorageError):
            for key in self._begun:
                _impatient(self._objects).remove(key)
        self._begun.clear()


class Upload:
    """A file that is uploaded in parts while it is written; a file smaller than a part is one PUT.

    Memory: one part that is being filled and `PARTS_IN_FLIGHT` that are being uploaded, 80 MiB.
    """

    def __init__(self, objects: S3Objects, key: str) -> None:
        self._objects, self._key = objects, key
        self._sha256, self._size_bytes = hashlib.sha256(), 0
        self._part = bytearray()
        self._upload_id = ""
        self._parts: list[Future[dict[str, Any]]] = []
        self._threads = ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="upload")
        self._given_up = threading.Event()

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        view = memoryview(data).cast("B")
        self._sha256.update(view)
        self._size_bytes += view.nbytes
        done = 0
        while done < view.nbytes:
            size = part_bytes(len(self._parts) + 1)
            taken = view[done : done + size - len(self._part)]
            self._part += taken
            done += taken.nbytes
            if len(self._part) == size:
                self._send_part()
        return view.nbytes

    def flush(self) -> None:
        """Does nothing; for callers that treat it as a file."""

    def finish(self) -> WrittenFile:
        """Complete the upload."""
        if not self._parts:
            self._objects.write_atomic(self._key, bytes(self._part))
        else:
            if self._part:
                self._send_part()
            parts = [part.result() for part in self._parts]
            self._objects.complete_upload(self._key, self._upload_id, parts, self._size_bytes)
        self._threads.shutdown()
        return WrittenFile(self._size_bytes, self._sha256.hexdigest())

    def abort(self) -> None:
        """End the upload and delete its parts on the server."""
        self._given_up.set()
        self._threads.shutdown(cancel_futures=True)
        if self._upload_id:
            with suppress(StorageError):
                _impatient(self._objects).abort_upload(self._key, self._upload_id)

    def _send_part(self) -> None:
        if not self._parts:
            self._upload_id = self._objects.begin_upload(self._key)
        data, self._part = self._part, bytearray()
        send = partial(self._objects.upload_part, self._key, self._upload_id, pause=self._pause)
        self._parts.append(self._threads.submit(send, len(self._parts) + 1, data))
        if len(self._parts) >= PARTS_IN_FLIGHT:
            self._parts[-PARTS_IN_FLIGHT].result()

    def _pause(self, seconds: float) -> None:
        if self._given_up.wait(seconds):
            raise InterruptedError("the upload was aborted")


def _impatient(objects: S3Objects) -> S3Objects:
    return S3Objects(objects.location.with_patience(_ABORT_S))
