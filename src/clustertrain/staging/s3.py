"""An object on S3 as a source: ranged GETs that name the version (ETag)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clustertrain.errors import DataError, StorageError
from clustertrain.staging.source import CutShort, Stream
from clustertrain.storage.header_values import content_range, validator_of
from clustertrain.storage.location import Location
from clustertrain.storage.s3_client import (
    code_of,
    connect,
    explained,
    http_status_of,
    is_transient,
    value_text,
)
from clustertrain.units import shortened


@dataclass(frozen=True)
class S3Source:
    """One object. The first answer contains its properties, so no HEAD and no second permission is needed."""

    location: Location
    bucket: str
    key: str
    supports_ranges: bool = True

    @classmethod
    def of(cls, location: Location) -> S3Source:
        bucket, key = location.bucket_and_key
        if not key or location.uri.endswith("/"):
            raise _names_no_object(location.uri)
        return cls(location, bucket, key)

    @property
    def retry_s(self) -> float:
        return self.location.retry_s

    def read_range(self, offset: int, end: int | None, validator: str | None) -> Stream:
        last = "" if end is None else end - 1
        request = {"Range": f"bytes={offset}-{last}"}
        if _is_etag(validator):
            request["IfMatch"] = str(validator)
        try:
            answer = self._get(request)
        except _NotThatRange:
            if offset:
                return self.read_range(0, None, None)  # the object has changed
            answer = self._get({})  # an empty object has no ranges
        return self._stream(answer, offset, end)

    def _get(self, request: dict[str, str]) -> Any:
        client = self._client()
        try:
            return client.get_object(Bucket=self.bucket, Key=self.key, **request)
        except Exception as error:
            if is_transient(error):
                raise CutShort(value_text(error)) from error
            if request and http_status_of(error) in (412, 416):
                raise _NotThatRange from error
            if http_status_of(error) == 404 and code_of(error) != "NoSuchBucket":
                raise self._missing(error) from error
            raise DataError(str(explained(self.location, "GET", self.key, error))) from error

    def _client(self) -> Any:
        try:
            return connect(self.location)
        except StorageError as error:
            raise DataError(str(error)) from error

    def _stream(self, answer: Any, offset: int, end: int | None) -> Stream:
        # A date cannot be a condition of a GET, but the caller compares it.
        validator = validator_of(answer.get("ETag")) or str(answer.get("LastModified"))
        body = answer["Body"]

        def read(size: int) -> bytes:
            try:
                data: bytes = body.read(size)
            except Exception as error:
                if not is_transient(error) and not isinstance(error, OSError):
                    raise
                raise CutShort(value_text(error)) from error
            return data

        sent = answer.get("ContentRange")
        if sent is None:  # an empty object, or the server does not support ranges
            length = int(answer["ContentLength"])
            return Stream(read, body.close, 0, length, length, validator)
        first, last, total = content_range(sent) or (-1, -1, 0)
        if first != offset or last + 1 != (total if end is None else min(end, total)):
            body.close()
            requested = f"{offset}-{'' if end is None else end - 1}"
            raise DataError(
                f"GET s3://{self.bucket}/{self.key}: the server sent {shortened(sent)}, "
                f"but bytes {requested} were requested.\n"
                "Correct the endpoint, or find out what answers there in its place."
            )
        return Stream(read, body.close, offset, last + 1, total, validator, splits=_is_etag(validator))

    def _missing(self, error: Exception) -> DataError:
        what = f"GET s3://{self.bucket}/{self.key}"
        if self.location.endpoint:
            what += f" at {self.location.endpoint}"
        if self._is_prefix():
            return _names_no_object(f"s3://{self.bucket}/{self.key}")
        return DataError(
            f"{what} was refused: HTTP {http_status_of(error)} {code_of(error)}: there is no such object.\n"
            "Correct the key; `aws s3 ls` shows what is there."
        )

    def _is_prefix(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found = self._client().list_objects_v2(Bucket=self.bucket, Prefix=f"{self.key}/", MaxKeys=1)
        except (BotoCoreError, ClientError):
            return False  # no permission to list: report only that the object is missing
        return bool(found.get("KeyCount"))


class _NotThatRange(Exception):
    """The object changed (412), or has nothing from there on (416)."""


def _is_etag(validator: str | None) -> bool:
    return validator is not None and validator.startswith('"')


def _names_no_object(uri: str) -> DataError:
    return DataError(
        f"{uri} is a prefix, not an object; a data set on S3 is one object.\n"
        "Pack them into one archive (tar) and set extract: true, or give the key of one object."
    )
