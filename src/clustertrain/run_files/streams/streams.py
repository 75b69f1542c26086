"""Streams: files that grow, with one writing process and any number of readers.

The writer appends to a plain file (`RunDir.local_path`). If the storage is S3, that file is on the
writer's node, and the new bytes are sent every few seconds as a numbered object `<key>.d/000001`
(stream_upload.py), because an object cannot grow. A reader reads the file if this node has it, and the
objects otherwise. It polls: inotify, which libraries that follow files use, does not report writes of another
host.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from clustertrain.node.regular_file import open_file
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.storage.posix import refused

_BLOCK_BYTES = 1 << 20
_AT_ONCE = 16  # objects of a stream: as many as the client has connections
PARTS = ".d"  # suffix of the folder of a stream's numbered objects


def part_key(key: str, number: int) -> str:
    """Return the key of the object that contains the `number`-th piece of a stream, from 1."""
    return f"{key}{PARTS}/{number:06d}"


class Tail:
    """Reads the bytes that were added to a stream since the last call."""

    def __init__(self, run: RunDir, key: str) -> None:
        self._run = run
        self._key = key
        self._read_bytes = 0
        self._parts_read = 0
        self._parts_bytes = 0
        self.unfinished = b""  # of `new_lines`: what came after the last newline

    def new(self) -> Iterator[bytes]:
        """Yield the bytes that were added since the last call, in blocks; none if there is no stream."""
        try:
            with open_file(self._run.local_path(self._key)) as file:
                file.seek(self._read_bytes)
                while block := file.read(_BLOCK_BYTES):
                    self._read_bytes += len(block)
                    yield block
        except (FileNotFoundError, NotADirectoryError):
            if self._run.is_spooled:
                yield from self._new_parts()
        except OSError as error:
            raise refused(self._run.local_path(self._key), "read", error) from error

    def new_lines(self) -> Iterator[bytes]:
        """Yield the complete lines that were added since the last call, without their newlines."""
        for block in self.new():
            *lines, self.unfinished = (self.unfinished + block).split(b"\n")
            yield from lines

    def _new_parts(self) -> Iterator[bytes]:
        """Yield the new bytes of the objects, without the bytes already read from the local file.

        The local file is deleted after its upload.
        """
        names = sorted(self._run.store.list(self._key + PARTS), key=len)  # 1000000 follows 999999
        with ThreadPoolExecutor(_AT_ONCE) as threads:  # a run of a week has a hundred thousand
            for first in range(self._parts_read, len(names), _AT_ONCE):
                for part in threads.map(self._part, names[first : first + _AT_ONCE]):
                    self._parts_read += 1
                    self._parts_bytes += len(part)
                    if self._parts_bytes > self._read_bytes:
                        fresh = part[self._read_bytes - self._parts_bytes :]
                        self._read_bytes = self._parts_bytes
                        yield fresh

    def _part(self, name: str) -> bytes:
        return self._run.store.read_or_none(f"{self._key}{PARTS}/{name}") or b""


def stream_names(run: RunDir, folder: str) -> list[str]:
    """Return the names of the streams directly under a key, on this node and in the storage."""
    names = set(run.spool.list(folder))
    if run.is_spooled:
        names |= {name.removesuffix(PARTS) for name in run.store.list(folder) if name.endswith(PARTS)}
    return sorted(names)
