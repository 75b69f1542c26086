"""How a worker opens the shards of `clustertrain.Shards`: local files, s3:// and http(s)://.

A shard is read in one stream, while the samples before are used. A cut connection is resumed at its byte if
the source can prove that the rest belongs to the same version.
"""

from __future__ import annotations

import io
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, cast

from clustertrain.errors import DataError
from clustertrain.staging.fetch import open_source
from clustertrain.staging.source import CHUNK_BYTES, CutShort, NotThatRange, Retries, Source, masked
from clustertrain.storage.location import Location
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
        remote = _Remote(_blocks(open_source(self.location_of(name)), name))
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


def _blocks(source: Source, uri: str) -> Generator[bytes]:
    """The bytes of a source from start to end, over any number of connections."""
    retries, at = Retries(source, uri), 0
    validator, total_bytes = None, None
    while True:
        try:
            known_bytes = 0
            try:
                stream = source.read_range(at, total_bytes or 0, validator if at else None)
            except NotThatRange:  # of a server that only sends whole files
                stream, known_bytes = source.read_range(0, 0, None), at
            with closing(stream):
                if at == 0:
                    validator, total_bytes = stream.validator, stream.total_bytes
                elif validator is None or stream.validator != validator:
                    raise DataError(
                        f"{masked(uri)} was cut after {at} bytes, and the server cannot continue there: "
                        "it has another version, or names none.\n"
                        "Continue the run, or stage the shards under `data`."
                    )
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
