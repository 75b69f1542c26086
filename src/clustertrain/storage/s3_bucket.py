"""The requests of a store to its bucket, one method each, with full keys.

Transient errors are retried (s3_client.persistently), so a request may reach the server more than once: all
requests are idempotent.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from clustertrain.errors import StorageError
from clustertrain.storage.location import Location
from clustertrain.storage.s3_answers import (
    Nonsense,
    check_progress,
    etag_of,
    objects_page,
    range_of,
    size_of,
    upload_id_of,
    uploads_page,
)
from clustertrain.storage.s3_client import connect, explained, http_status_of, persistently

_T = TypeVar("_T")
_SHA256, _WRITER = "sha256", "writer"  # of our own objects' metadata
_DELETED_AT_ONCE = 1000
_MARKS = {  # the continuation of a truncated listing: key of the answer → key of the next request
    "NextContinuationToken": "ContinuationToken",
    "NextKeyMarker": "KeyMarker",
    "NextUploadIdMarker": "UploadIdMarker",
}
_LACKS_BATCHES = (400, 405, 411, 501)
_SHOWS_NO_UPLOADS = (403, 405, 501)


class TooLate(Exception):
    """The deadline for a request has passed."""


class Bucket:
    """The bucket of a location."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.name, _ = location.bucket_and_key

    @property
    def _client(self) -> Any:
        return connect(self.location)

    # ------------------------------------------------------------------------------------- one object

    def put(self, key: str, data: bytes, *, writer: str = "", before: float = math.inf) -> None:
        """Write or replace an object. The server checks the received bytes against the MD5.

        Raises:
            TooLate: the monotonic clock has reached `before`, and the object was not written yet.
        """

        def put() -> Any:
            if time.monotonic() >= before:
                raise TooLate
            return self._put(key, data, writer)

        self._request("PUT", key, put)

    def put_if_absent(self, key: str, data: bytes, *, writer: str) -> int:
        """Write an object if it does not exist. Returns the HTTP status: 200, 412 if it exists, 501 if the
        server does not support the condition. A server that ignores the condition always answers 200."""
        try:
            self._request(
                "PUT", key, lambda: self._put(key, data, writer, IfNoneMatch="*"), answers=(412, 501)
            )
        except ClientError as error:
            return http_status_of(error)
        return 200

    def get(self, key: str) -> tuple[bytes, str] | None:
        """The bytes of a small object, checked against the sha256 in its metadata, and its writer."""

        def whole() -> tuple[bytes, str]:
            answer = self._client.get_object(Bucket=self.name, Key=key)
            with answer["Body"] as body:
                data = body.read()
            metadata = answer.get("Metadata", {})
            if metadata.get(_SHA256, _sha256(data)) != _sha256(data):
                raise ConnectionError("the received bytes do not match the checksum in the metadata")
            return data, metadata.get(_WRITER, "")

        return self._unless_absent("GET", key, whole)

    def exists(self, key: str) -> bool:
        return self._unless_absent("HEAD", key, lambda: self._head(key)) is not None

    def size_or_none(self, key: str) -> int | None:
        """The size of an object in bytes; None if it does not exist."""
        return self._unless_absent("HEAD", key, lambda: size_of(self._head(key)))

    def blocks(self, key: str, block_bytes: int) -> Iterator[bytes]:
        """The bytes of an object in order; after a cut it continues, as long as the object is the same.

        Raises:
            FileNotFoundError: there is no such object.
        """
        reading = _Reading(self._client, self.name, key)
        try:
            while True:
                try:
                    block = self._request("GET", key, lambda: reading.next(block_bytes), answers=(404, 412))
                except ClientError as error:
                    if reading.offset == 0 and http_status_of(error) == 404:
                        raise FileNotFoundError(f"s3://{self.name}/{key} does not exist") from error
                    raise StorageError(
                        f"s3://{self.name}/{key} was changed or removed while it was read "
                        f"(HTTP {http_status_of(error)} at byte {reading.offset}).\n"
                        "Run again to read it again."
                    ) from error
                if not block:
                    return
                yield block
        finally:
            reading.close()

    # ------------------------------------------------------------------------------------ many objects

    def below(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        """Every key with this prefix, and the time of its write by the server's clock."""
        for page in self._pages(prefix, "list_objects_v2", objects_page):
            yield from ((entry["Key"], entry["LastModified"]) for entry in page["Contents"])

    def directly_below(self, folder: str) -> tuple[list[str], list[str]]:
        """Names of the objects and of the folders in a folder, which ends with '/' or is empty."""
        objects, folders = [], []
        for page in self._pages(folder, "list_objects_v2", objects_page, Delimiter="/"):
            objects += [entry["Key"][len(folder) :] for entry in page["Contents"]]
            folders += [entry["Prefix"][len(folder) : -1] for entry in page["CommonPrefixes"]]
        return [name for name in objects if name], [name for name in folders if name]

    def delete(self, *keys: str) -> None:
        """Remove objects; missing objects are no error."""
        if len(keys) > 1:
            keys = tuple(key for batch in _batches(keys) for key in self._not_deleted(batch))
        for key in keys:
            self._delete(key)

    def _delete(self, key: str) -> None:
        self._request("DELETE", key, lambda: self._client.delete_object(Bucket=self.name, Key=key))

    def _not_deleted(self, keys: Collection[str]) -> Collection[str]:
        """Remove objects by one request. Returns those that it did not remove: all of them if the server does
        not support the request."""
        batch = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            answer = self._request(
                "DELETE",
                next(iter(keys)),
                lambda: self._client.delete_objects(Bucket=self.name, Delete=batch),
                answers=_LACKS_BATCHES,
            )
        except ClientError:
            return keys
        left = {error.get("Key") for error in answer.get("Errors", [])}
        return [key for key in keys if key in left] if left <= set(keys) else keys

    # ---------------------------------------------------------------------------------- multipart uploads

    def begin_upload(self, key: str) -> str:
        """The id of a new multipart upload. After a lost answer there may be two; the first is collected
        later."""

        def begin() -> str:
            return upload_id_of(self._client.create_multipart_upload(Bucket=self.name, Key=key))

        return self._request("POST", key, begin)

    def upload_part(
        self, key: str, upload_id: str, number: int, data: bytearray, pause: Callable[[float], None]
    ) -> str:
        """Upload one part; returns its ETag. `pause` waits between two tries; an exception of it ends
        them."""
        where = {"Bucket": self.name, "Key": key, "UploadId": upload_id, "PartNumber": number}
        md5 = _md5(data)

        def part() -> str:
            return etag_of(self._client.upload_part(**where, Body=data, ContentMD5=md5))

        return persistently(self.location, f"PUT part {number} of", key, part, answers=(), pause=pause)

    def complete_upload(self, key: str, upload_id: str, etags: list[str], size_bytes: int) -> None:
        """Create the object from its parts. After a lost answer the upload is gone and the object exists."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]

        def complete() -> Any:
            return self._client.complete_multipart_upload(
                Bucket=self.name, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )

        try:
            self._request("POST", key, complete, answers=(404,))
        except ClientError as error:
            if self.size_or_none(key) != size_bytes:
                raise explained(self.location, "POST", key, error) from error

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Remove the parts of an upload that will not be completed; a missing upload is no error."""
        where = {"Bucket": self.name, "Key": key, "UploadId": upload_id}
        self._unless_absent("DELETE", key, lambda: self._client.abort_multipart_upload(**where))

    def uploads_below(self, prefix: str) -> list[tuple[str, str]]:
        """(key, id) of every multipart upload that was neither completed nor aborted.

        Empty if the server does not list them: then a lifecycle rule of the bucket has to remove them.
        """
        found = []
        try:
            for page in self._pages(
                prefix, "list_multipart_uploads", uploads_page, answers=_SHOWS_NO_UPLOADS
            ):
                found += [(upload["Key"], upload["UploadId"]) for upload in page["Uploads"]]
        except ClientError:
            return []
        return found

    # ------------------------------------------------------------------------------------------ requests

    def _head(self, key: str) -> Any:
        return self._client.head_object(Bucket=self.name, Key=key)

    def _put(self, key: str, data: bytes, writer: str, **condition: str) -> Any:
        metadata = {_SHA256: _sha256(data)} | ({_WRITER: writer} if writer else {})
        return self._client.put_object(
            Bucket=self.name, Key=key, Body=data, ContentMD5=_md5(data), Metadata=metadata, **condition
        )

    def _request(
        self, action: str, key: str, request: Callable[[], _T], *, answers: Collection[int] = ()
    ) -> _T:
        return persistently(self.location, action, key, request, answers=answers)

    def _unless_absent(self, action: str, key: str, request: Callable[[], _T]) -> _T | None:
        try:
            return self._request(action, key, request, answers=(404,))
        except ClientError:
            return None

    def _pages(
        self,
        prefix: str,
        operation: str,
        checked: Callable[[Any, str], dict[str, Any]],
        *,
        answers: Collection[int] = (),
        **options: str,
    ) -> Iterator[dict[str, Any]]:
        """The pages of a listing, each with retries: boto3's paginator ends at the first error."""
        marks: dict[str, str] = {}

        def page() -> dict[str, Any]:
            found = getattr(self._client, operation)(Bucket=self.name, Prefix=prefix, **options, **marks)
            check_progress(marks, _marks_after(found))
            return checked(found, prefix)

        while True:
            found = self._request("LIST", prefix, page, answers=answers)
            yield found
            marks = _marks_after(found)
            if not marks:
                return


class _Reading:
    """An object that is being read; after an error `next` continues after the last byte that it returned."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self._client, self._where = client, {"Bucket": bucket, "Key": key}
        self._body: Any = None
        self._total_bytes = 0
        self._etag = ""
        self.offset = 0

    def next(self, block_bytes: int) -> bytes:
        """The next block; empty at the end."""
        if self._body is None:
            self._open()
        expected_bytes = min(block_bytes, self._total_bytes - self.offset)
        if expected_bytes == 0:
            return b""
        try:
            block: bytes = self._body.read(expected_bytes)
        except BaseException:
            self.close()
            raise
        if len(block) != expected_bytes:
            self.close()
            raise ConnectionError(f"received {len(block)} bytes, expected {expected_bytes}")
        self.offset += expected_bytes
        return block

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def _open(self) -> None:
        rest = {"Range": f"bytes={self.offset}-", "IfMatch": self._etag} if self._etag else {}
        if rest and self.offset == self._total_bytes:
            return
        answer = self._client.get_object(**self._where, **rest)
        self._body = answer["Body"]
        try:
            self._check(answer, is_rest=bool(rest))
        except Nonsense:
            self.close()
            raise

    def _check(self, answer: Any, *, is_rest: bool) -> None:
        if not is_rest:
            self._etag, self._total_bytes = etag_of(answer), size_of(answer)
        elif range_of(answer, self.offset, None)[1] != self._total_bytes:
            raise Nonsense("the size of the object changed, but not its ETag")


def _marks_after(page: dict[str, Any]) -> dict[str, str]:
    """Where the listing continues after this page; empty if it ends with it."""
    return {mark: page[at] for at, mark in _MARKS.items() if page.get(at)} if page.get("IsTruncated") else {}


def _batches(keys: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(keys), _DELETED_AT_ONCE):
        yield keys[start : start + _DELETED_AT_ONCE]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _md5(data: bytes | bytearray) -> str:
    """The MD5 as S3 expects it: a checksum against transfer errors, not for security."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
