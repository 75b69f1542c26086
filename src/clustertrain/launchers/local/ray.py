"""Ray for the driver of `clustertrain run`: on this machine, or the cluster that RAY_ADDRESS names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clustertrain import variables
from clustertrain.driver.ray_cluster import RayCluster
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.job.sections import Resources
from clustertrain.node.ray_settings import OBJECT_STORE_BYTES
from clustertrain.run.folder import Attempt


def ray_cluster(job: Job) -> RayCluster:
    """The cluster that RAY_ADDRESS names; where it names none, Ray on this machine."""
    if address := ray_address():
        return GivenRay(address, job.resources)
    return LocalRay(os.environ[variables.RAY_DIR], job.resources)


def ray_address() -> str | None:
    """The address of the user's own Ray cluster; None where Ray is started on this machine."""
    return os.environ.get("RAY_ADDRESS") or None


@dataclass(frozen=True)
class LocalRay(RayCluster):
    """Ray that the driver starts on this machine, with room for the run's workers; it ends with the driver.

    `folder`: private and short, for Ray's files and sockets.
    """

    folder: str
    resources: Resources
    is_this_machine = True

    def connect(self, attempt: Attempt, world_size: int) -> str:
        import ray

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine: gradients stay on it
        _start_no_idle_processes()
        ray.init(
            address="local",
            num_cpus=max(1, round(world_size * self.resources.cpus_per_worker + 0.5)),
            num_gpus=world_size * self.resources.gpus_per_worker,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=self.folder,
        )
        return "local"


def _start_no_idle_processes() -> None:
    """Omit what does nothing for a run on one machine and costs 0.7 s of CPU each: the server of a dashboard
    that is off, the autoscaler, and the forwarder of logs. `ray.init` has no option for that."""
    from ray._private.node import Node

    def nothing(self: Node, **options: Any) -> None:
        """In place of the start of such a process."""

    Node.start_api_server = Node.start_monitor = Node.start_log_monitor = nothing


@dataclass(frozen=True)
class GivenRay(RayCluster):
    """A Ray cluster that somebody else started, and that other users may share."""

    address: str
    resources: Resources
    outlives_run = True

    def connect(self, attempt: Attempt, world_size: int) -> str:
        import ray

        try:
            ray.init(address=self.address, log_to_driver=False)
        except (ConnectionError, OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise ClusterError(
                f"RAY_ADDRESS={self.address}: {str(error).splitlines()[0]}\n"
                "Start that cluster, name its token (RAY_AUTH_TOKEN_PATH), or unset RAY_ADDRESS."
            ) from error
        self.check_room(world_size, ray.cluster_resources())
        return self.address

    def check_room(self, world_size: int, has: Mapping[str, float]) -> None:
        """Refuse a cluster without room for all workers.

        Raises:
            ClusterError: names what is missing.
        """
        for kind, each in (("CPU", self.resources.cpus_per_worker), ("GPU", self.resources.gpus_per_worker)):
            if world_size * each > has.get(kind, 0):
                raise ClusterError(
                    f"{world_size} workers × {each:g} {kind} = {world_size * each:g} {kind}s, "
                    f"and the Ray cluster at {self.address} has {has.get(kind, 0):g}.\n"
                    f"Set resources.workers or {kind.lower()}s_per_worker lower, or add nodes."
                )
