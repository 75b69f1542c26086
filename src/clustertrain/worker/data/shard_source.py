"""How a worker opens the shards of `clustertrain.Shards`: local files, s3:// and http(s)://.

A shard is read in one stream, while the samples before are used. A cut connection is resumed at its byte if
the source can prove that the rest belongs to the same version.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, cast

from clustertrain.errors import DataError
from clustertrain.staging.source import CHUNK_BYTES, WEB_RETRY_S, CutShort, Retries, masked
from clustertrain.storage.location import Location, local_path
from clustertrain.training.data.tar_shard import open_local


@dataclass(frozen=True)
class ShardOpener:
    """Opens the shards of a job. It is pickled to the loader processes.

    Attributes:
        storage: of the job; its S3 options are those of the shards on S3.
    """

    storage: Location

    def __call__(self, name: str) -> BinaryIO:
        """
        Raises:
            DataError: it does not exist, or access is refused.
            JobError: a scheme that is not supported.
        """
        if "://" not in name:
            return open_local(name)
        location = self.location_of(name)
        if not (location.is_s3 or location.is_http):
            return open_local(str(local_path(name, what="shards")))
        remote = _Remote(_blocks(location))
        return cast(BinaryIO, io.BufferedReader(remote, CHUNK_BYTES))

    def location_of(self, name: str) -> Location:
        location = Location(name)
        return replace(self.storage, uri=name) if location.is_s3 and self.storage.is_s3 else location


class _Remote(io.RawIOBase):
    """The bytes of an iterator of blocks as a file."""

    def __init__(self, blocks: Generator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._rest or next(self._blocks, b"")
        count = min(len(data), len(buffer))
        buffer[:count], self._rest = data[:count], data[count:]
        return count

    def close(self) -> None:
        self._blocks.close()
        super().close()


@dataclass(frozen=True)
class _Stream:
    """Bytes of a shard from `offset` to the end.

    Attributes:
        total_bytes: the length of the whole shard, or None if it is not known.
        validator: identifies the version of the bytes, or None if they have none.
    """

    blocks: Iterator[bytes]
    close: Callable[[], None]
    offset: int
    total_bytes: int | None
    validator: str | None


def _blocks(location: Location) -> Generator[bytes]:
    """The bytes of a shard from start to end, over any number of connections."""
    uri, opened = location.uri, _from_s3 if location.is_s3 else _from_web
    retries = Retries(location.retry_s if location.is_s3 else WEB_RETRY_S, uri)
    at, validator, total_bytes = 0, None, None
    while True:
        try:
            with closing(opened(location, validator, at)) as stream:
                if at == 0:
                    validator, total_bytes = stream.validator, stream.total_bytes
                elif validator is None or stream.validator != validator:
                    raise DataError(
                        f"{masked(uri)} was cut after {at} bytes, and the server cannot continue there: "
                        "it has another version, or names none.\n"
                        "Continue the run, or stage the shards under `data`."
                    )
                known_bytes = at - stream.offset  # of a server that only sends whole files
                for block in stream.blocks:
                    known_bytes, data = max(0, known_bytes - len(block)), block[known_bytes:]
                    at += len(data)
                    if data:
                        yield data
            if total_bytes is None or at >= total_bytes:
                return
            raise CutShort(f"{at} of {total_bytes} bytes were received")
        except CutShort as cut:
            time.sleep(retries.pause_s(cut, at))


def _from_web(location: Location, validator: str | None, offset: int) -> _Stream:
    from clustertrain.staging.http import blocks_of, get, is_rest, version_of

    url = location.uri
    answer = get(url, validator, offset)
    if answer.status == 200:
        version, total_bytes = version_of(url, answer)
        return _Stream(blocks_of(url, answer), answer.close, 0, total_bytes, version)
    if is_rest(answer, validator, offset):
        return _Stream(blocks_of(url, answer), answer.close, offset, None, validator)
    answer.close()
    return _from_web(location, None, 0)


def _from_s3(location: Location, validator: str | None, offset: int) -> _Stream:
    from clustertrain.staging.s3 import explained_errors
    from clustertrain.storage.s3_client import connect, http_status_of, with_new_credentials

    bucket, key = location.bucket_and_key
    request = {} if validator is None else {"Range": f"bytes={offset}-", "IfMatch": validator}
    with explained_errors(location):
        try:
            answer = with_new_credentials(
                lambda: connect(location).get_object(Bucket=bucket, Key=key, **request)
            )
        except Exception as error:
            if request and http_status_of(error) in (412, 416):
                return _from_s3(location, None, 0)
            raise
    body, etag = answer["Body"], answer.get("ETag")

    def blocks() -> Iterator[bytes]:
        with explained_errors(location):
            yield from body.iter_chunks(CHUNK_BYTES)

    is_whole = "ContentRange" not in answer
    total_bytes = answer["ContentLength"] if is_whole else None
    return _Stream(blocks(), body.close, 0 if is_whole else offset, total_bytes, etag)
