"""The last finished step, in a file that is correct even after its writer was killed."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from clustertrain.run_files.folder.run_dir import Attempt, Restart
from clustertrain.run_files.streams.events import read_events


class Reached:
    """The last finished step in a memory-mapped file: no system call per step, and kept after a SIGKILL."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(struct.pack("<q", 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def set(self, step: int) -> None:
        struct.pack_into("<q", self._map, 0, step)

    def close(self) -> None:
        self._map.close()


def counted_step(restart: Restart) -> int:
    """Return the last step in the counter of a start, or 0 if there is none."""
    run, key = restart.attempt.run, restart.reached_key
    data = run.spool.read_or_none(key) or run.store.read_or_none(key) or b""
    return int(struct.unpack("<q", data)[0]) if len(data) == 8 else 0


def reached_step(restart: Restart) -> int:
    """Return the last step that a start of the group finished, or 0 if it finished none.

    The mapped counter contains every step. If it was lost with its machine, its copy on S3 and the curve
    contain a step that is a few seconds old.
    """
    logged = (int(r.get("step") or 0) for r in read_events(restart.attempt.run, restart.metrics_key))
    return max(counted_step(restart), *logged, 0)


def has_finished_a_step(attempt: Attempt) -> bool:
    """Return whether a start of the group in this attempt finished a step.

    The curve is read only where the counter shows no step.
    """
    return any(counted_step(each) or reached_step(each) for each in attempt.restarts())
