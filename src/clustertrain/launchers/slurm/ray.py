"""The driver's connection to the Ray that the agents of a SLURM job start on its nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from clustertrain import variables
from clustertrain.driver.ray_cluster import Deadline, RayCluster, RayNotUp, all_there
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.slurm.ray_start_retry import result_of_late_node
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.node.network import is_listening
from clustertrain.run.command_line import command_on
from clustertrain.run.folder import Attempt
from clustertrain.run.records import Result
from clustertrain.run.rendezvous import arrivals


def ray_cluster(job: Job) -> RayCluster:
    """The cluster whose head the agent of this node started."""
    address, _, port = os.environ[variables.HEAD].partition(":")
    nodes = tuple(os.environ[variables.NODES].split(","))
    return SlurmRay(address, int(port), nodes, job.section(Slurm).nodes_wait_s)


@dataclass(frozen=True)
class SlurmRay(RayCluster):
    """The Ray cluster of one SLURM job. It ends with the job, and the loss of a node ends the run."""

    head_address: str
    head_port: int
    nodes: tuple[str, ...]
    nodes_wait_s: float
    has_worker_slots = True

    @property
    def name(self) -> str:  # type: ignore[override]  # a property of the head's node, constant in the base
        return f"Ray on {self.nodes[0]}"

    @property
    def deadline(self) -> Deadline:
        return Deadline(self.nodes_wait_s, "slurm.nodes_wait")

    def connect(self, attempt: Attempt, world_sizes: Sequence[int]) -> str:
        from clustertrain.driver.connection import Head, connect_to
        from clustertrain.driver.ray_internals import keep_loopback

        ends = time.monotonic() + self.nodes_wait_s
        address = f"{self.head_address}:{self.head_port}"
        head, hint = Head(address), f"{_hint(attempt, self.nodes[0])}."
        if not all_there(attempt, head.has_node, "nodes", self.nodes_wait_s):
            raise RayNotUp(f"{self.name} did not start within {self.deadline}.\n{hint}")
        if len(self.nodes) == 1:
            keep_loopback()
        try:
            connect_to(address, f"{self.name} at {address}", hint, _node_ip_address=self.head_address)
        except ClusterError as error:
            if self.is_gone() and error.__cause__ is not None:
                raise error.__cause__ from None  # the agent of the head reports how Ray ended
            raise
        if not all_there(attempt, lambda: not self._missing(), "nodes", ends - time.monotonic()):
            raise self._incomplete(attempt)
        return address

    def result_of_late_ray(self, job: Job, attempt: Attempt, text: str) -> Result:
        return result_of_late_node(attempt, job, text)

    def is_gone(self) -> bool:
        return not is_listening(self.head_address, self.head_port)

    def _missing(self) -> list[str]:
        import ray

        alive = {node["NodeName"] for node in ray.nodes() if node["Alive"]}
        return [node for node in self.nodes if node not in alive]

    def _incomplete(self, attempt: Attempt) -> RayNotUp:
        """The error that names the missing nodes, and whether each of them found the storage."""
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
