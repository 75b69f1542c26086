"""A Ray cluster whose nodes come and go during a run: it trains with as many workers as there is room for."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from clustertrain.driver.ray_cluster import RayCluster, all_there
from clustertrain.driver.world_size import RayNode, Workers, largest, room_on
from clustertrain.node.network import is_listening
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.streams.event_log import EventLog

_NOTICED_WITHIN_S = 60.0  # Ray calls a lost node alive for up to 30 s
LOOK_EVERY_S = 1.0


class ElasticCluster(RayCluster):
    """A Ray cluster whose nodes come and go."""

    @property
    @abstractmethod
    def per_worker(self) -> Mapping[str, float]:
        """The resources that decide how many workers fit on a node."""

    def room(self, attempt: Attempt, without: str = "") -> int:
        """Return for how many workers the nodes have room now, including the workers that this run has.

        All nodes count that are not left out, except the one with the id `without`.
        """
        return room_on(self._nodes(attempt, without), self.per_worker, _own(attempt))

    def _nodes(self, attempt: Attempt, without: str = "") -> list[RayNode]:
        left_out = {*excluded_nodes(attempt), without}
        return [node for node in alive_nodes() if node.node_id not in left_out]

    def can_do_without(self, attempt: Attempt, node_id: str, world_sizes: Sequence[int]) -> bool:
        return self.room(attempt, without=node_id) >= world_sizes[0]

    def workers_now(self, attempt: Attempt, world_sizes: Sequence[int]) -> Workers:
        """Return the largest of these numbers for which there is room, otherwise the smallest."""
        count = largest(world_sizes, self.room(attempt)) or world_sizes[0]
        return Workers(count, excluded_nodes(attempt))

    def has_room_in_time(
        self, attempt: Attempt, world_sizes: Sequence[int], what: str, timeout_s: float
    ) -> bool:
        """Wait until there is room for the workers; return whether there was within `timeout_s` seconds.

        That is room for the largest number of workers or, after `resize_after_s`, for a smaller one that the
        job allows.

        Raises:
            RunStopped: a stop was requested meanwhile.
        """
        started, is_reported = time.monotonic(), False

        def is_enough() -> bool:
            nonlocal is_reported
            waited_s, nodes = time.monotonic() - started, self._nodes(attempt)
            if waited_s < _NOTICED_WITHIN_S and any(map(_is_silent, nodes)):
                return False
            room = room_on(nodes, self.per_worker, _own(attempt))
            size = largest(world_sizes, room)
            enough = size == world_sizes[-1] or (size is not None and waited_s >= self.resize_after_s)
            if not enough and not is_reported:
                is_reported = True
                self._report(attempt, world_sizes, room, what)
            return enough

        return all_there(attempt, is_enough, what, timeout_s, LOOK_EVERY_S)

    def _report(self, attempt: Attempt, world_sizes: Sequence[int], room: int, what: str) -> None:
        text = f"waiting for {what}: there is room for {room} of {world_sizes[-1]} workers"
        if len(world_sizes) > 1:
            text += (
                f"; after {self.resize_after_s:g} s (failures.resize_after) at least {world_sizes[0]} start"
            )
        EventLog(attempt.events).write("note", text=text)


def excluded_nodes(attempt: Attempt) -> frozenset[str]:
    """Return Ray's ids of the nodes with a broken GPU, which the starts of this attempt leave out."""
    failures = (restart.failure.read() for restart in attempt.restarts())
    return frozenset(failure.broken_node for failure in failures if failure and failure.broken_node)


def alive_nodes() -> list[RayNode]:
    """Return the nodes that Ray calls alive.

    Ray notices after up to 30 s that a node was lost, and the free resources are a second old.
    """
    import ray  # the submit side does not load it

    from clustertrain.driver.ray_internals import available_resources_per_node

    free = available_resources_per_node()
    return [
        RayNode(
            node["NodeManagerAddress"],
            int(node["NodeManagerPort"]),
            node["Resources"],
            free.get(node["NodeID"], {}),
            node["NodeID"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _is_silent(node: RayNode) -> bool:
    return not is_listening(node.address, node.port)


def _own(attempt: Attempt) -> Sequence[str]:
    """Return the addresses of the workers of the newest start of the group, or none if it has returned."""
    restart = attempt.newest_restart()
    plan = restart.plan.read() if restart is not None and not restart.outcome.exists() else None
    return plan.addresses if plan is not None else ()
