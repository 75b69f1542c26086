"""The last finished step, where it survives the death of whoever wrote it."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path


class Reached:
    """The last finished step in a mapped file: no system call per step, and still there after a SIGKILL."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(struct.pack("<q", 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def set(self, step: int) -> None:
        struct.pack_into("<q", self._map, 0, step)

    def close(self) -> None:
        self._map.close()


def read_reached(path: Path) -> int:
    """The step that `Reached` holds; 0 where there is none."""
    try:
        return int(struct.unpack("<q", path.read_bytes())[0])
    except (FileNotFoundError, struct.error):
        return 0
