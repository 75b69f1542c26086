"""An object on S3 as a source: ranged GETs that name the version (ETag)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clustertrain.errors import DataError, StorageError
from clustertrain.staging.header_values import sent_range, validator_of
from clustertrain.staging.source import CHUNK_BYTES, CutShort, NotThatRange, Source, Stream, is_strong
from clustertrain.storage.location import Location
from clustertrain.storage.s3_client import connect, explained, http_status_of, is_transient, value_text
from clustertrain.units import shortened


class S3Source(Source):
    """One object. The first answer contains its properties, so no HEAD and no second permission is needed."""

    supports_ranges = True

    def __init__(self, location: Location) -> None:
        if not location.bucket_and_key[1] or location.uri.endswith("/"):
            raise DataError(
                f"{location.uri} is a prefix, not an object; a data set on S3 is one object.\n"
                "Pack them into one archive (tar) and set extract: true, or give the key of one object."
            )
        self._location, self.retry_s = location, location.retry_s

    def read_range(self, offset: int, end: int | None, validator: str | None) -> Stream:
        requested = f"{offset}-{'' if end is None else end - 1}"
        request = {"Range": f"bytes={requested}"} if requested != "0-" else {}
        if is_strong(validator):  # a date cannot be a condition of a GET, but the caller compares it
            request["IfMatch"] = str(validator)
        answer = self._get(request)
        version = validator_of(answer.get("ETag")) or str(answer.get("LastModified"))
        body, sent = answer["Body"], answer.get("ContentRange")
        if sent is None:
            length = int(answer["ContentLength"])
            has_ranges = not request and answer.get("AcceptRanges") == "bytes"
            return Stream(_blocks(body), body.close, 0, length, length, version, has_ranges)
        if (found := sent_range(sent, offset, end)) is None:
            body.close()
            raise DataError(
                f"GET {self._location.uri}: the server sent {shortened(sent)}, "
                f"but bytes {requested} were requested.\n"
                "Correct the endpoint, or find out what answers there in its place."
            )
        return Stream(_blocks(body), body.close, *found, version, has_ranges=True)

    def _get(self, request: dict[str, str]) -> Any:
        bucket, key = self._location.bucket_and_key
        try:
            return connect(self._location).get_object(Bucket=bucket, Key=key, **request)
        except StorageError as error:
            raise DataError(str(error)) from error
        except Exception as error:
            if is_transient(error):
                raise CutShort(value_text(error)) from error
            if request and http_status_of(error) in (412, 416):
                # The object has changed, or has no byte there; an empty one has no ranges.
                raise NotThatRange("it changed during the download") from error
            raise DataError(str(explained(self._location, "GET", key, error))) from error


def _blocks(body: Any) -> Iterator[bytes]:
    try:
        yield from body.iter_chunks(CHUNK_BYTES)
    except Exception as error:
        if not is_transient(error) and not isinstance(error, OSError):
            raise
        raise CutShort(value_text(error)) from error
