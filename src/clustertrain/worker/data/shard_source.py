"""How a worker opens the shards of `clustertrain.Shards`: local files, s3:// and http(s)://.

A shard is read in one stream, while the samples before are used. A cut connection is resumed at its byte if
the source can prove that the rest belongs to the same version.
"""

from __future__ import annotations

import io
import time
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, cast

from clustertrain.errors import DataError
from clustertrain.job.model import Job
from clustertrain.staging.fetch import open_source
from clustertrain.staging.retries import Retries
from clustertrain.staging.source import CHUNK_BYTES, CutShort, Source, Stream, masked
from clustertrain.storage.location import Location
from clustertrain.training.data.shards import set_opener
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
        remote = _Remote(open_source(self.location_of(name)), name)
        return cast(BinaryIO, io.BufferedReader(remote, CHUNK_BYTES))

    def location_of(self, name: str) -> Location:
        location = Location(name)
        return replace(self.storage, uri=name) if location.is_s3 and self.storage.is_s3 else location


def read_shards_of(job: Job) -> None:
    """Open the shards of this process's data sets with the S3 options of the job's storage."""
    set_opener(ShardOpener(job.storage.location))


class _Remote(io.RawIOBase):
    """The bytes of a source from start to end, over any number of connections."""

    def __init__(self, source: Source, uri: str) -> None:
        self._source, self._uri = source, uri
        self._retries = Retries(source, uri, 0)
        self._at = 0
        self._validator: str | None = None
        self._total_bytes: int | None = None
        self._stream: Stream | None = None
        self._rest = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ended:
            try:
                data = self._next(len(buffer))
            except CutShort as cut:
                self._drop()
                time.sleep(self._retries.pause_s(cut, self._at))
                continue
            buffer[: len(data)] = data
            self._at += len(data)
            return len(data)
        return 0

    def _next(self, most_bytes: int) -> bytes:
        if self._stream is None:
            self._stream = self._opened()
        data = self._rest or next(self._stream.blocks, b"")
        data, self._rest = data[:most_bytes], data[most_bytes:]
        if not data:
            total = self._total_bytes
            if total is not None and self._at < total:
                raise CutShort(f"{self._at} of {total} bytes were received")
            self._ended = True
            self._drop()
        return data

    def _opened(self) -> Stream:
        stream = self._source.opened(self._at, None, self._validator)
        known = (self._validator, self._total_bytes)
        if self._at == 0:
            self._validator, self._total_bytes = stream.validator, stream.total_bytes
        elif (stream.validator, stream.total_bytes) != known or stream.validator is None:
            stream.close()
            raise DataError(
                f"{masked(self._uri)} was cut after {self._at} bytes, and the server cannot continue there: "
                "it has another version, or names none.\n"
                "Continue the run, or stage the shards under `data`."
            )
        try:
            self._skip(stream, self._at - stream.offset)
        except CutShort:
            stream.close()
            raise
        return stream

    def _skip(self, stream: Stream, count: int) -> None:
        """Read `count` bytes again, from a server that only sends whole files."""
        while count > 0:
            data = next(stream.blocks, b"")
            if not data:
                raise CutShort(f"{self._at - count} of {self._total_bytes} bytes were received")
            self._rest, count = data[count:], count - len(data)

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        self._drop()
        super().close()
