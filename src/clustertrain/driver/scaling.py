"""The number of workers of each start of the worker group: Ray Train's scaling policy for a run whose nodes
come and go.

A smaller group after a loss    chosen when Ray Train starts the group again
A larger group                  the workers are asked to save and return; the driver then calls `fit` again
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from clustertrain.driver.elastic_cluster import ElasticCluster
from clustertrain.driver.ray_internals import FixedScalingPolicy, NoopDecision, ResizeDecision
from clustertrain.driver.world_size import largest
from clustertrain.errors import StorageError
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.folder import Attempt
from clustertrain.run.records import ResizeRequest
from clustertrain.run.streams.event_log import EventLog

_LOOK_EVERY_S = 5.0


class ElasticPolicy(FixedScalingPolicy):  # type: ignore[misc]  # ray ships no types
    """Starts the group with the largest number of workers that has room, and asks for a larger one when it
    has had room for `resize_after_s`.

    Ray Train would end the processes of a running group to resize it. A request lets them finish their step,
    save and close their logs, so that no step is repeated, and their end is not a failure.

    Args:
        grows: False for a script: only the script knows when it has saved.
    """

    def __init__(
        self,
        scaling_config: Any,
        ref: AttemptRef,
        cluster: ElasticCluster,
        world_sizes: Sequence[int],
        *,
        grows: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(scaling_config)
        self._ref, self._cluster, self._world_sizes = ref, cluster, tuple(world_sizes)
        self._grows, self._clock = grows, clock
        self._looked_s = self._room_since_s = -1.0

    def _get_num_workers_for_resource_request(self) -> int:
        return self._world_sizes[-1]  # of a cluster with an autoscaler

    def make_decision_for_non_running_worker_group(self) -> ResizeDecision:
        self._maybe_send_resource_request()
        self._looked_s = self._room_since_s = -1.0
        size = self._cluster.world_size_now(self._ref.open(), self._world_sizes)
        return ResizeDecision(size, self.scaling_config._resources_per_worker_not_none)

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> NoopDecision:
        self._maybe_send_resource_request()
        size, now = worker_group_state.num_workers, self._clock()
        if self._grows and size < self._world_sizes[-1] and now - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now
            attempt = self._ref.open()
            with suppress(StorageError):  # an unreachable storage delays the request, and never the training
                self._look_for_room(attempt.run.with_patience(0).attempt(attempt.n), size, now)
        return NoopDecision()

    def _look_for_room(self, attempt: Attempt, size: int, now: float) -> None:
        possible = largest(self._world_sizes, self._cluster.room(attempt)) or 0
        if possible <= size:
            self._room_since_s = -1.0
            return
        if self._room_since_s < 0:
            self._room_since_s = now
        restart = attempt.newest_restart()
        if now - self._room_since_s < self._cluster.resize_after_s or restart is None:
            return
        if not restart.resize.exists():
            restart.resize.write(ResizeRequest(possible))
            text = (
                f"there is room for {possible} workers: the present {size} will save, and {possible} continue"
            )
            EventLog(attempt.events).write("note", text=text)
