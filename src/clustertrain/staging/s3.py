"""An object on S3 as a source: ranged GETs that name the version (ETag)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clustertrain.errors import DataError, StorageError
from clustertrain.staging.source import CHUNK_BYTES, CutShort, NotThatRange, Source, Stream
from clustertrain.storage.location import Location
from clustertrain.storage.s3_client import (
    connect,
    explained,
    http_status_of,
    is_transient,
    value_text,
    with_new_credentials,
)
from clustertrain.units import shortened


class S3Source(Source):
    """One object. The first answer contains its properties, so no HEAD and no second permission is needed."""

    def __init__(self, location: Location) -> None:
        if not location.bucket_and_key[1] or location.uri.endswith("/"):
            raise DataError(
                f"{location.uri} is a prefix, not an object; a data set on S3 is one object.\n"
                "Pack them into one archive (tar) and set extract: true, or give the key of one object."
            )
        self._location, self.retry_s = location, location.retry_s

    def read_range(self, offset: int, end: int, validator: str | None) -> Stream:
        requested = f"{offset}-{end - 1}"
        request = {} if validator is None else {"Range": f"bytes={requested}", "IfMatch": validator}
        answer = self._get(request)
        body, etag, sent = answer["Body"], answer.get("ETag"), answer.get("ContentRange", "")
        if not request and not sent:
            return Stream(_blocks(body), body.close, answer["ContentLength"], etag)
        if not request or etag != validator or not sent.startswith(f"bytes {requested}/"):
            body.close()
            wanted = f"bytes {requested} of version {validator}" if request else "the whole object"
            raise NotThatRange(f"the server sent {shortened(f'{sent} of version {etag}')}, not {wanted}")
        return Stream(_blocks(body), body.close, None, etag)

    def _get(self, request: dict[str, str]) -> Any:
        bucket, key = self._location.bucket_and_key
        try:
            return with_new_credentials(
                lambda: connect(self._location).get_object(Bucket=bucket, Key=key, **request)
            )
        except StorageError as error:
            raise DataError(str(error)) from error
        except Exception as error:
            if is_transient(error):
                raise CutShort(value_text(error)) from error
            if request and http_status_of(error) in (412, 416):
                raise NotThatRange("it changed during the download") from error
            raise DataError(str(explained(self._location, "GET", key, error))) from error


def _blocks(body: Any) -> Iterator[bytes]:
    try:
        yield from body.iter_chunks(CHUNK_BYTES)
    except Exception as error:
        if not is_transient(error) and not isinstance(error, OSError):
            raise
        raise CutShort(value_text(error)) from error
