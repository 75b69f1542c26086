"""Objects on S3 below the prefix of a location: the requests of a store.

Transient errors are retried (s3_client.persistently), so a request may reach the server more than once: all
requests are idempotent.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from clustertrain.errors import StorageError
from clustertrain.storage.location import Location
from clustertrain.storage.s3_client import connect, persistently

_T = TypeVar("_T")
_SHA256, _WRITER = "sha256", "writer"  # of our own objects' metadata
_SHOWS_NO_UPLOADS = (403, 405, 501)


@dataclass(frozen=True)
class S3Objects:
    """All keys are relative to the location's prefix.

    Attributes:
        pause: waits between two tries of a request; by default time.sleep. An exception of it ends the tries.
    """

    location: Location
    pause: Callable[[float], None] | None = None

    def uri(self, key: str) -> str:
        return "s3://{Bucket}/{Key}".format(**self._address(key))

    def within(self, retry_s: float) -> S3Objects:
        """Return the same objects; transient errors are retried for at most `retry_s` seconds."""
        return S3Objects(self.location.with_patience(retry_s))

    # ------------------------------------------------------------------------------------- one object

    def read_or_none(self, key: str) -> bytes | None:
        """Return the bytes of a small object, checked against the sha256 in its metadata."""

        def whole() -> bytes:
            answer = self._request("get_object", key)
            data: bytes = answer["Body"].read()
            if answer["Metadata"].get(_SHA256, _sha256(data)) != _sha256(data):
                raise ConnectionError("the received bytes do not match the checksum in the metadata")
            return data

        return self._ask("GET", key, whole, (404,))

    def write_atomic(self, key: str, data: bytes) -> None:
        self.call("PUT", "put_object", key, **_body(data))

    def create_exclusive(self, key: str, data: bytes) -> bool:
        body = _body(data, **{_WRITER: uuid.uuid4().hex})
        if self.call("PUT", "put_object", key, none_if=(412,), IfNoneMatch="*", **body) is not None:
            return True
        # After a lost answer the PUT is repeated, and the second one finds the object of the first.
        found = self.call("HEAD", "head_object", key, none_if=(404,))
        return found is not None and found["Metadata"].get(_WRITER) == body["Metadata"][_WRITER]

    def remove(self, key: str) -> None:
        self.call("DELETE", "delete_object", key, none_if=(404,))  # Google's answer if it is gone

    def size_or_none(self, key: str) -> int | None:
        found = self.call("HEAD", "head_object", key, none_if=(404,))
        return None if found is None else int(found["ContentLength"])

    def exists(self, key: str) -> bool:
        return self.size_or_none(key) is not None

    def blocks(self, key: str, *, block_bytes: int = 1 << 20) -> Iterator[bytes]:
        """Yield the bytes of an object; after a cut it continues, as long as the object is the same."""
        at = 0
        whole: dict[str, Any] = {}
        rest: Any = None

        def next_block() -> bytes:
            """Read the block at byte `at`, empty at the end."""
            nonlocal whole, rest
            # After an error `rest` stays None: the next call opens another connection.
            body, rest = rest, None
            if body is None:
                same = {"Range": f"bytes={at}-", "IfMatch": whole["ETag"]} if whole else {}
                answer = self._request("get_object", key, **same)
                body = answer.pop("Body")
                whole = whole or answer
                _check_length(answer["ContentLength"], whole["ContentLength"] - at)
            expected_bytes = min(block_bytes, whole["ContentLength"] - at)
            block: bytes = body.read(expected_bytes)
            _check_length(len(block), expected_bytes)
            rest = body
            return block

        while block := self._ask("GET", key, next_block, (404, 412)):
            at += len(block)
            yield block
        if block is None and not whole:
            raise FileNotFoundError(f"{self.uri(key)} does not exist")
        if block is None:
            raise StorageError(
                f"{self.uri(key)} was changed or removed while it was read, at byte {at}.\n"
                "Run again to read it again."
            )

    # ------------------------------------------------------------------------------------ many objects

    def below(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """Yield every key in a folder and in its folders, and the time of its write by the server's clock."""
        start = len(self._prefix(""))
        for page in self._pages("list_objects_v2", folder):
            yield from ((entry["Key"][start:], entry["LastModified"]) for entry in page.get("Contents", []))

    def remove_below(self, folder: str) -> None:
        """Remove every object in a folder, one by one: some servers cannot remove several by one request."""
        for key, _ in self.below(folder):
            self.remove(key)

    def uploads_below(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield (key, id) of every multipart upload that was neither completed nor aborted.

        Empty if the server does not list them: then a lifecycle rule of the bucket has to remove them.
        """
        start = len(self._prefix(""))
        for page in self._pages("list_multipart_uploads", folder, none_if=_SHOWS_NO_UPLOADS):
            yield from ((upload["Key"][start:], upload["UploadId"]) for upload in page.get("Uploads", []))

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Remove the parts of an upload that will not be completed.

        A missing upload is not an error. Nor is a policy that forbids the removal: no reader sees the parts,
        and a lifecycle rule can remove them.
        """
        self.call("DELETE", "abort_multipart_upload", key, none_if=(403, 404), UploadId=upload_id)

    # ------------------------------------------------------------------------------------------ requests

    def call(self, action: str, method: str, key: str, *, none_if: Collection[int] = (), **more: Any) -> Any:
        """Call a method of boto3's client; return its answer, or None for the HTTP statuses in `none_if`."""
        return self._ask(action, key, lambda: self._request(method, key, **more), none_if)

    def _request(self, method: str, key: str, **more: Any) -> Any:
        return getattr(connect(self.location), method)(**self._address(key), **more)

    def _pages(self, method: str, folder: str, *, none_if: Collection[int] = (), **more: str) -> list[Any]:
        """Return the pages of a listing; after a transient error the listing begins again."""
        where = {"Bucket": self._address("")["Bucket"], "Prefix": self._prefix(folder), **more}

        def pages() -> list[Any]:
            return list(connect(self.location).get_paginator(method).paginate(**where))

        return self._ask("LIST", folder, pages, none_if) or []

    def _ask(self, action: str, key: str, request: Callable[[], _T], none_if: Collection[int]) -> _T | None:
        full = self._address(key)["Key"]
        try:
            return persistently(self.location, action, full, request, answers=none_if, pause=self.pause)
        except ClientError:
            return None

    def _address(self, key: str) -> dict[str, str]:
        bucket, prefix = self.location.bucket_and_key
        return {"Bucket": bucket, "Key": "/".join(part for part in (prefix, key) if part)}

    def _prefix(self, folder: str) -> str:
        return f"{full}/" if (full := self._address(folder)["Key"]) else ""


def _check_length(received_bytes: int, expected_bytes: int) -> None:
    if received_bytes != expected_bytes:
        raise ConnectionError(f"received {received_bytes} bytes, expected {expected_bytes}")


def md5_of(data: bytes | bytearray) -> str:
    """Return the MD5 as S3 expects it: a checksum against transfer errors, not for security."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _body(data: bytes, **metadata: str) -> dict[str, Any]:
    """Return the arguments for a small object, which the server checks by MD5 and a reader by sha256."""
    metadata = {_SHA256: _sha256(data), **metadata}
    return {"Body": data, "ContentMD5": md5_of(data), "Metadata": metadata}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
