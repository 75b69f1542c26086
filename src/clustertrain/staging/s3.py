"""An object on S3 as a source: ranged GETs that name the version (ETag)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clustertrain.errors import DataError, StorageError
from clustertrain.staging.header_values import content_range, validator_of
from clustertrain.staging.source import CHUNK_BYTES, CutShort, Stream
from clustertrain.storage.location import Location
from clustertrain.storage.s3_client import connect, explained, http_status_of, is_transient, value_text
from clustertrain.units import shortened


@dataclass(frozen=True)
class S3Source:
    """One object. The first answer contains its properties, so no HEAD and no second permission is needed."""

    location: Location
    supports_ranges: bool = True

    def __post_init__(self) -> None:
        if not self.location.bucket_and_key[1] or self.location.uri.endswith("/"):
            raise DataError(
                f"{self.location.uri} is a prefix, not an object; a data set on S3 is one object.\n"
                "Pack them into one archive (tar) and set extract: true, or give the key of one object."
            )

    @property
    def retry_s(self) -> float:
        return self.location.retry_s

    def read_range(self, offset: int, end: int | None, validator: str | None) -> Stream:
        requested = f"{offset}-{'' if end is None else end - 1}"
        condition = {"IfMatch": validator} if _is_etag(validator) else {}
        answer = self._get({"Range": f"bytes={requested}", **condition})
        if answer is None and offset:
            return self.read_range(0, None, None)
        answer = answer or self._get({})  # an empty object has no ranges
        # A date cannot be a condition of a GET, but the caller compares it.
        version = validator_of(answer.get("ETag")) or str(answer.get("LastModified"))
        blocks, close = _blocks(answer["Body"]), answer["Body"].close
        sent = answer.get("ContentRange")
        if sent is None:  # an empty object, or the server does not support ranges
            length = int(answer["ContentLength"])
            return Stream(blocks, close, 0, length, length, version)
        first, last, total = content_range(sent) or (-1, -1, 0)
        if first != offset or last + 1 != (total if end is None else min(end, total)):
            close()
            raise DataError(
                f"GET {self.location.uri}: the server sent {shortened(sent)}, "
                f"but bytes {requested} were requested.\n"
                "Correct the endpoint, or find out what answers there in its place."
            )
        return Stream(blocks, close, offset, last + 1, total, version, splits=_is_etag(version))

    def _get(self, request: dict[str, str | None]) -> Any:
        """The answer, or None if the object has changed (412), or has nothing from the offset on (416)."""
        bucket, key = self.location.bucket_and_key
        try:
            return connect(self.location).get_object(Bucket=bucket, Key=key, **request)
        except StorageError as error:
            raise DataError(str(error)) from error
        except Exception as error:
            status = http_status_of(error)
            if is_transient(error):
                raise CutShort(value_text(error)) from error
            if request and status in (412, 416):
                return None
            raise DataError(str(explained(self.location, "GET", key, error))) from error


def _blocks(body: Any) -> Iterator[bytes]:
    try:
        yield from body.iter_chunks(CHUNK_BYTES)
    except Exception as error:
        if not is_transient(error) and not isinstance(error, OSError):
            raise
        raise CutShort(value_text(error)) from error


def _is_etag(validator: str | None) -> bool:
    return validator is not None and validator.startswith('"')
