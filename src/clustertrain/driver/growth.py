"""A group with fewer workers than the job allows: it returns for a larger one when there is room for that."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from clustertrain.driver.ray_cluster import RayCluster
from clustertrain.driver.world_size import Workers
from clustertrain.errors import StorageError
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.recorded_job import is_of_script
from clustertrain.run_files.records.requests import ResizeRequest
from clustertrain.run_files.streams.event_log import EventLog

_LOOK_EVERY_S = 5.0


class Growth:
    """Looks for room for more workers while these train."""

    def __init__(
        self, ref: AttemptRef, cluster: RayCluster, world_sizes: Sequence[int], workers: Workers
    ) -> None:
        self._ref, self._cluster = ref, cluster
        self._world_sizes, self._count = world_sizes, workers.count
        self._looked_s, self._room_since_s = -math.inf, math.inf

    def look(self) -> None:
        """Ask the workers to save and return once there has been room for more of them for a while.

        A script is not asked, because only it knows when it has saved.
        """
        now = time.monotonic()
        if self._count == self._world_sizes[-1] or now - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now
        with suppress(StorageError):  # an unreachable storage delays the request, and never the training
            attempt = self._ref.open()
            attempt = attempt.run.with_patience(0).attempt(attempt.n)
            possible = self._cluster.workers_now(attempt, self._world_sizes).count
            self._room_since_s = min(self._room_since_s, now) if possible > self._count else math.inf
            restart = attempt.newest_restart()
            if now - self._room_since_s < self._cluster.resize_after_s or restart is None:
                return
            if not restart.resize.exists() and not is_of_script(attempt):
                restart.resize.write(ResizeRequest(possible))
                room = f"there is room for {possible} workers"
                text = f"{room}: the present {self._count} will save, and {possible} continue"
                EventLog(attempt.events).write("note", text=text)


def next_larger(attempt: Attempt, workers: Workers) -> Workers | None:
    """Return the workers of the next start if these saved and returned because there is room for more.

    Otherwise return None.
    """
    restart = attempt.newest_restart()
    request, outcome = (restart.resize.read(), restart.outcome.read()) if restart else (None, None)
    if request is None or outcome is None or outcome.finished or attempt.stop.exists():
        return None
    return replace(workers, count=request.world_size)
