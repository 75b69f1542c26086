"""A tree of files on S3: the files are uploaded while they are written; the marker is put last.

torch.save writes directly into the upload. s3transfer, boto3's own transfers, would upload such a stream in
parts of one size, of which S3 allows 10,000: 16 MiB would limit a file to 160 GB, and larger parts would
take too much memory.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from clustertrain.errors import StorageError
from clustertrain.storage.posix_tree import WrittenFile
from clustertrain.storage.s3_objects import S3Objects, md5_of

NEWEST = ".newest"
PART_BYTES = 16 << 20
PARTS_IN_FLIGHT = 4
_PARTS_BEFORE_GROWTH = 5000  # of the 10,000 that an upload may have: 80 GB in small parts, 5 TB in all
_GROWN = 64
_ABORT_S = 10.0  # the next writer collects what cannot be removed in this time


def part_bytes(number: int) -> int:
    """Return the size of the part with this number, from 1 on; S3 allows 10,000 parts and 5 TiB in all."""
    return PART_BYTES if number <= _PARTS_BEFORE_GROWTH else PART_BYTES * _GROWN


class S3Tree:
    """Files under `key`. A killed writer leaves files without a marker, which readers ignore."""

    handle = "final"

    def __init__(self, objects: S3Objects, key: str) -> None:
        self.files: dict[str, WrittenFile] = {}
        self._objects, self._key = objects, key
        self._begun: list[str] = []

    @contextmanager
    def create(self, name: str) -> Iterator[Upload]:
        """Create a file of the tree; it is uploaded when the block ends."""
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
            if not self._objects.exists(key := f"{self._key}/{name}"):
                raise FileNotFoundError(f"{key} was removed while the tree was written")
        self._begun.clear()  # from here on there is a tree, ours or another's: `abort` must not remove it
        if not self._objects.create_exclusive(f"{self._key}/{marker}", data):
            raise FileExistsError(f"{self._objects.uri(self._key)} exists already")
        self.files[marker] = WrittenFile(len(data), hashlib.sha256(data).hexdigest())
        parent, _, name = self._key.rpartition("/")
        self._objects.write_atomic(f"{parent}/{NEWEST}", name.encode())

    def abort(self) -> None:
        """Remove the written files, which were never visible."""
        with suppress(StorageError):
            for key in self._begun:
                self._objects.within(_ABORT_S).remove(key)


class Upload:
    """A file that is uploaded in parts while it is written; a file of one part is one PUT.

    Memory: one part that is being filled and `PARTS_IN_FLIGHT` that are being uploaded, 80 MiB.
    """

    def __init__(self, objects: S3Objects, key: str) -> None:
        self._objects, self._key = S3Objects(objects.location, self._pause), key
        self._sha256, self.size_bytes = hashlib.sha256(), 0
        self._part = bytearray()
        self._upload_id = ""
        self._parts: list[Future[dict[str, Any]]] = []
        self._threads = ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="upload")
        self._given_up = threading.Event()

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        whole = rest = memoryview(data).cast("B")
        while rest:
            missing = part_bytes(len(self._parts) + 1) - len(self._part)
            piece, rest = rest[:missing], rest[missing:]
            self._sha256.update(piece)
            self._part += piece
            self.size_bytes += piece.nbytes
            if rest:  # a full part waits for another byte, so that the last one is never empty
                self._send_part()
        return whole.nbytes

    def flush(self) -> None:
        """Do nothing; for callers that treat it as a file."""

    def finish(self) -> WrittenFile:
        """Complete the upload."""
        if self._parts:
            self._send_part()
            self._complete([part.result() for part in self._parts])
        else:
            self._objects.write_atomic(self._key, bytes(self._part))
        self._threads.shutdown()
        return WrittenFile(self.size_bytes, self._sha256.hexdigest())

    def abort(self) -> None:
        """End the upload and delete its parts on the server."""
        self._given_up.set()
        self._threads.shutdown(cancel_futures=True)
        if self._upload_id:
            with suppress(StorageError):
                self._objects.within(_ABORT_S).abort_upload(self._key, self._upload_id)

    def _send_part(self) -> None:
        if not self._parts:
            # After a lost answer there may be two uploads; the first is collected later.
            self._upload_id = self._objects.call("POST", "create_multipart_upload", self._key)["UploadId"]
        data, self._part = self._part, bytearray()
        self._parts.append(self._threads.submit(self._put_part, len(self._parts) + 1, data))
        if len(self._parts) >= PARTS_IN_FLIGHT:
            self._parts[-PARTS_IN_FLIGHT].result()

    def _put_part(self, number: int, data: bytearray) -> dict[str, Any]:
        """Upload one part; returns its entry in the list of parts."""
        part = {"PartNumber": number, "Body": data, "ContentMD5": md5_of(data)}
        answer = self._call(f"PUT part {number} of", "upload_part", **part)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        """Create the object from its parts. After a lost answer the upload is gone and the object exists."""
        complete = partial(self._call, "POST", "complete_multipart_upload", MultipartUpload={"Parts": parts})
        if complete(none_if=(404,)) is None and self._objects.size_or_none(self._key) != self.size_bytes:
            complete()  # raises the refusal

    def _call(self, action: str, method: str, **more: Any) -> Any:
        return self._objects.call(action, method, self._key, UploadId=self._upload_id, **more)

    def _pause(self, seconds: float) -> None:
        if self._given_up.wait(seconds):
            raise InterruptedError("the upload was aborted")
