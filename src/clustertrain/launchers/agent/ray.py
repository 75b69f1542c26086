"""The driver's connection to the Ray that the agents of a job start on its nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from clustertrain.driver.ray_cluster import Deadline, RayCluster, RayNotUp, all_there
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.agent.node import AgentSettings, result_of_late_node
from clustertrain.node import variables
from clustertrain.node.network import is_listening
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.rendezvous import arrivals

_POLL_S = 0.1
_HEAD_ENDS_WITHIN_S = 5.0  # after a raylet that ended, Ray on the head ends as a whole: driver/ray_node.py


def ray_of_agents(settings: AgentSettings) -> AgentsRay:
    """Return the cluster whose head the agent of this node started."""
    address, _, port = os.environ[variables.HEAD].partition(":")
    nodes = tuple(os.environ[variables.NODES].split(","))
    return AgentsRay(address, int(port), nodes, settings.nodes_wait, settings.next_start)


@dataclass(frozen=True)
class AgentsRay(RayCluster):
    """The Ray cluster of one job. It ends with the job, and the loss of a node ends the run."""

    head_address: str
    head_port: int
    nodes: tuple[str, ...]
    deadline: Deadline
    next_start: str | None
    has_worker_slots = True

    @property
    def name(self) -> str:  # type: ignore[override]  # a property of the head's node, constant in the base
        return f"Ray on {self.nodes[0]}"

    def connect(self, attempt: Attempt, world_sizes: Sequence[int]) -> str:
        from clustertrain.driver.connection import RayHead
        from clustertrain.driver.ray_internals import keep_loopback

        ends = time.monotonic() + self.deadline.seconds
        address = f"{self.head_address}:{self.head_port}"
        if len(self.nodes) == 1:
            keep_loopback()
        while True:
            if not all_there(attempt, RayHead(address).has_node, "nodes", ends - time.monotonic()):
                raise RayNotUp(
                    f"{self.name} did not start within {self.deadline}.\n{_hint(attempt, self.nodes[0])}."
                )
            if self._connect(attempt, address, ends):
                return address

    def _connect(self, attempt: Attempt, address: str, ends: float) -> bool:
        """Connect, and wait for the nodes; return False if Ray on the head ended meanwhile.

        Then it is started again, or the agent of the head reports why not and ends this process. Raises as
        `connect`.
        """
        import ray
        from ray.exceptions import RayError

        from clustertrain.driver.connection import connect_to

        what, hint = f"{self.name} at {address}", f"{_hint(attempt, self.nodes[0])}."
        try:
            connect_to(address, what, hint, _node_ip_address=self.head_address)
            are_there = all_there(attempt, lambda: not self._missing(), "nodes", ends - time.monotonic())
        except (ClusterError, RayError):
            if not wait_until(self.is_gone, _HEAD_ENDS_WITHIN_S, _POLL_S):
                raise
            ray.shutdown()
            return False
        if not are_there:
            raise self._incomplete(attempt)
        return True

    def result_of_late_ray(self, job: Job, attempt: Attempt, text: str) -> Result:
        return result_of_late_node(attempt, job, text, self.next_start)

    def is_gone(self) -> bool:
        return not is_listening(self.head_address, self.head_port)

    def _missing(self) -> list[str]:
        import ray

        alive = {node["NodeName"] for node in ray.nodes() if node["Alive"]}
        return [node for node in self.nodes if node not in alive]

    def _incomplete(self, attempt: Attempt) -> RayNotUp:
        """Return the error that names the missing nodes, and whether each of them found the storage."""
        missing, hosts = self._missing(), {arrival.host for arrival in arrivals(attempt).values()}
        absent = [node for node in missing if node not in hosts]
        arrived = [node for node in missing if node in hosts]
        causes = []
        if absent:
            causes.append(
                f"{', '.join(absent)} did not find {attempt.uri}: is that path the same file system there?"
            )
        if arrived:
            causes.append(
                f"{', '.join(arrived)} found it, and their Ray did not reach the head: "
                f"{_hint(attempt, arrived[0])}."
            )
        return RayNotUp(
            f"Waiting for {len(self.nodes)} nodes, have {len(self.nodes) - len(missing)} after "
            f"{self.deadline}: {', '.join(missing)} are missing.\n" + "\n".join(causes)
        )


def _hint(attempt: Attempt, node: str) -> str:
    return f"`{command_on(attempt.uri, 'logs', '--node', node)}` shows what Ray printed there"
