"""Objects on S3 below the prefix of a location: the requests of a store, one method each.

Transient errors are retried (s3_client.persistently), so a request may reach the server more than once: all
requests are idempotent.
"""

from __future__ import annotations

import base64
import builtins
import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from clustertrain.errors import StorageError
from clustertrain.storage.location import Location
from clustertrain.storage.posix_tree import HIDDEN
from clustertrain.storage.s3_client import connect, explained, http_status_of, persistently

_T = TypeVar("_T")
_SHA256, _WRITER = "sha256", "writer"  # of our own objects' metadata
_SHOWS_NO_UPLOADS = (403, 405, 501)


@dataclass(frozen=True)
class S3Objects:
    """All keys are relative to the location's prefix."""

    location: Location

    def uri(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._full(key)}"

    # ------------------------------------------------------------------------------------- one object

    def read_or_none(self, key: str) -> bytes | None:
        found = self.read_with_writer(key)
        return None if found is None else found[0]

    def read_with_writer(self, key: str) -> tuple[bytes, str] | None:
        """The bytes of a small object, checked against the sha256 in its metadata, and its writer."""

        def whole() -> tuple[bytes, str]:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._full(key))
            with answer["Body"] as body:
                data = body.read()
            metadata = answer["Metadata"]
            if metadata.get(_SHA256, _sha256(data)) != _sha256(data):
                raise ConnectionError("the received bytes do not match the checksum in the metadata")
            return data, metadata.get(_WRITER, "")

        return _unless_absent(lambda: self._request("GET", key, whole, answers=(404,)))

    def write_atomic(self, key: str, data: bytes) -> None:
        self._put(key, data)

    def put_if_absent(self, key: str, data: bytes, writer: str) -> int:
        """Write an object if it does not exist. Returns the HTTP status: 200, 412 if it exists, 501 if the
        server does not support the condition. A server that ignores the condition always answers 200."""
        try:
            self._put(key, data, writer, answers=(412, 501), IfNoneMatch="*")
        except ClientError as error:
            return http_status_of(error)
        return 200

    def remove(self, key: str) -> None:
        self._call("DELETE", "delete_object", key)

    def size_or_none(self, key: str) -> int | None:
        answer = _unless_absent(lambda: self._call("HEAD", "head_object", key, answers=(404,)))
        return None if answer is None else int(answer["ContentLength"])

    def blocks(self, key: str, *, block_bytes: int = 1 << 20) -> Iterator[bytes]:
        """The bytes of an object; after a cut it continues, as long as the object is the same."""
        body: Any = None
        etag, at, total_bytes = "", 0, 0

        def next_block() -> bytes:
            """The next block, empty at the end; after an error a call begins at the same byte again."""
            nonlocal body, etag, total_bytes
            try:
                if body is None:
                    rest = {"Range": f"bytes={at}-", "IfMatch": etag} if etag else {}
                    answer = self._client.get_object(Bucket=self._bucket, Key=self._full(key), **rest)
                    body = answer["Body"]
                    if rest:
                        _check_length(answer["ContentLength"], total_bytes - at)
                    etag, total_bytes = answer["ETag"], at + answer["ContentLength"]
                expected_bytes = min(block_bytes, total_bytes - at)
                found: bytes = body.read(expected_bytes)
                _check_length(len(found), expected_bytes)
            except BaseException:
                close()
                raise
            return found

        def close() -> None:
            nonlocal body
            if body is not None:
                body.close()
                body = None

        try:
            while block := self._request("GET", key, next_block, answers=(404, 412)):
                at += len(block)
                yield block
        except ClientError as error:
            if at == 0 and http_status_of(error) == 404:
                raise FileNotFoundError(f"{self.uri(key)} does not exist") from error
            raise StorageError(
                f"{self.uri(key)} was changed or removed while it was read "
                f"(HTTP {http_status_of(error)} at byte {at}).\nRun again to read it again."
            ) from error
        finally:
            close()

    # ------------------------------------------------------------------------------------ many objects

    def list(self, prefix: str) -> builtins.list[str]:
        objects, folders = self.directly_below(prefix)
        return sorted(name for name in {*objects, *folders} if not name.startswith(HIDDEN))

    def directly_below(self, folder: str) -> tuple[builtins.list[str], builtins.list[str]]:
        """Names of the objects and of the folders in a folder."""
        start, objects, folders = len(self._folder(folder)), [], []
        for page in self._pages("list_objects_v2", folder, Delimiter="/"):
            objects += [entry["Key"][start:] for entry in page.get("Contents", [])]
            folders += [entry["Prefix"][start:-1] for entry in page.get("CommonPrefixes", [])]
        return [name for name in objects if name], [name for name in folders if name]

    def below(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """Every key in a folder and in its folders, and the time of its write by the server's clock."""
        start = len(self._folder(""))
        for page in self._pages("list_objects_v2", folder):
            yield from ((entry["Key"][start:], entry["LastModified"]) for entry in page.get("Contents", []))

    def remove_below(self, folder: str) -> None:
        """Remove every object in a folder, one by one: some servers cannot remove several by one request."""
        for key, _ in self.below(folder):
            self.remove(key)

    # ---------------------------------------------------------------------------------- multipart uploads

    def begin_upload(self, key: str) -> str:
        """The id of a new multipart upload. After a lost answer there may be two; the first is collected
        later."""
        return str(self._call("POST", "create_multipart_upload", key)["UploadId"])

    def upload_part(
        self, key: str, upload_id: str, number: int, data: bytearray, pause: Callable[[float], None]
    ) -> dict[str, Any]:
        """Upload one part; returns its entry for `complete_upload`. `pause` waits between two tries; an
        exception of it ends them."""
        where = {"Bucket": self._bucket, "Key": self._full(key), "UploadId": upload_id, "PartNumber": number}
        body = {"Body": data, "ContentMD5": _md5(data)}

        def etag() -> str:
            return str(self._client.upload_part(**where, **body)["ETag"])

        action = f"PUT part {number} of"
        return {"PartNumber": number, "ETag": self._request(action, key, etag, pause=pause)}

    def complete_upload(
        self, key: str, upload_id: str, parts: builtins.list[dict[str, Any]], size_bytes: int
    ) -> None:
        """Create the object from its parts. After a lost answer the upload is gone and the object exists."""
        whole = {"UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
        try:
            self._call("POST", "complete_multipart_upload", key, answers=(404,), **whole)
        except ClientError as error:
            if self.size_or_none(key) != size_bytes:
                raise explained(self.location, "POST", self._full(key), error) from error

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Remove the parts of an upload that will not be completed; a missing upload is not an error."""
        abort = "abort_multipart_upload"
        _unless_absent(lambda: self._call("DELETE", abort, key, answers=(404,), UploadId=upload_id))

    def uploads_below(self, folder: str) -> builtins.list[tuple[str, str]]:
        """(key, id) of every multipart upload that was neither completed nor aborted.

        Empty if the server does not list them: then a lifecycle rule of the bucket has to remove them.
        """
        start = len(self._folder(""))
        pages = self._pages("list_multipart_uploads", folder, answers=_SHOWS_NO_UPLOADS)
        try:
            uploads = [upload for page in pages for upload in page.get("Uploads", [])]
        except ClientError:
            return []
        return [(upload["Key"][start:], upload["UploadId"]) for upload in uploads]

    # ------------------------------------------------------------------------------------------ requests

    @property
    def _client(self) -> Any:
        return connect(self.location)

    @property
    def _bucket(self) -> str:
        return self.location.bucket_and_key[0]

    def _full(self, key: str) -> str:
        return "/".join(part for part in (self.location.bucket_and_key[1], key) if part)

    def _folder(self, key: str) -> str:
        return f"{full}/" if (full := self._full(key)) else ""

    def _put(self, key: str, data: bytes, writer: str = "", **more: Any) -> None:
        """The server checks the received bytes against the MD5."""
        metadata = {_SHA256: _sha256(data)} | ({_WRITER: writer} if writer else {})
        body: dict[str, Any] = {"Body": data, "ContentMD5": _md5(data), "Metadata": metadata}
        self._call("PUT", "put_object", key, **body, **more)

    def _call(
        self, action: str, method: str, key: str, *, answers: Collection[int] = (), **parameters: Any
    ) -> Any:
        def call() -> Any:
            return getattr(self._client, method)(Bucket=self._bucket, Key=self._full(key), **parameters)

        return self._request(action, key, call, answers=answers)

    def _request(self, action: str, key: str, request: Callable[[], _T], **more: Any) -> _T:
        return persistently(self.location, action, self._full(key), request, **more)

    def _pages(
        self, method: str, folder: str, *, answers: Collection[int] = (), **parameters: str
    ) -> builtins.list[Any]:
        """The pages of a listing; after a transient error it begins again."""
        where = {"Bucket": self._bucket, "Prefix": self._folder(folder), **parameters}

        def pages() -> builtins.list[Any]:
            return list(self._client.get_paginator(method).paginate(**where))

        return self._request("LIST", folder, pages, answers=answers)


def _check_length(received_bytes: int, expected_bytes: int) -> None:
    if received_bytes != expected_bytes:
        raise ConnectionError(f"received {received_bytes} bytes, expected {expected_bytes}")


def _unless_absent(request: Callable[[], _T]) -> _T | None:
    try:
        return request()
    except ClientError:
        return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _md5(data: bytes | bytearray) -> str:
    """The MD5 as S3 expects it: a checksum against transfer errors, not for security."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
