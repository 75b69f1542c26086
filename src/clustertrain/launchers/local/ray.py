"""Ray for the driver of `clustertrain run`: on this machine, the cluster of RAY_ADDRESS, or none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clustertrain.driver.elastic_cluster import ElasticCluster
from clustertrain.driver.ray_cluster import Deadline, RayCluster, node_parameters, worker_resources
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.job.sections import Resources
from clustertrain.launchers.agent.node import settings_of
from clustertrain.launchers.agent.ray import ray_of_agents
from clustertrain.launchers.one_host import NO_RAY, ray_address
from clustertrain.node import variables
from clustertrain.node.network import LOOPBACK
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.streams.event_log import EventLog


def ray_cluster(job: Job) -> RayCluster:
    """Return the Ray of the agents of a job of several hosts, which a plug-in has started.

    Else that of RAY_ADDRESS, if it is set; else Ray on this machine, or none.
    """
    if variables.HEAD in os.environ:
        return ray_of_agents(settings_of(job))
    has_ray = os.environ.get(variables.RAY) != NO_RAY
    deadline = Deadline(job.failures.ray_start_s, "failures.ray_start")
    if not has_ray or not (address := ray_address()):
        return LocalRay(os.environ[variables.RAY_DIR], job.resources, deadline, has_ray)
    if len(job.world_sizes) == 1:
        return GivenRay(address, job.resources, deadline, 0.0)
    resize_after_s = job.failures.resize_after_s
    deadline = Deadline(deadline.seconds + resize_after_s, f"{deadline.key} + failures.resize_after")
    return GivenRay(address, job.resources, deadline, resize_after_s)


@dataclass(frozen=True)
class LocalRay(RayCluster):
    """This machine, with a Ray that the driver starts and that ends with it, or without one (`run --no-ray`).

    `folder`: a private folder with a short path, for the files and sockets of Ray and of the fork server.
    """

    folder: str
    resources: Resources
    deadline: Deadline
    has_ray: bool = True
    is_this_machine = True

    def prepare(self) -> None:
        from clustertrain.driver.fork.starter import fork_server_of_this_process

        fork_server_of_this_process(Path(self.folder), self.resources.cpus_per_worker)

    def connect(self, attempt: Attempt, world_sizes: Sequence[int]) -> str:
        import ray

        from clustertrain.driver import ray_watch
        from clustertrain.driver.ray_internals import RayParams, keep_loopback
        from clustertrain.driver.ray_node import start_ray

        def warn(text: str) -> None:
            EventLog(attempt.events).write("warning", text=text)

        parameters = node_parameters(self.resources, world_sizes[-1], LOOPBACK, Path(self.folder))
        keep_loopback()
        node = start_ray(RayParams(**parameters), self.deadline, warn, head=True, shutdown_at_exit=False)
        ray_watch.end_with(node)
        ray.init(address=node.address, log_to_driver=False, _node_ip_address=LOOPBACK)
        return "local"

    def is_gone(self) -> bool:
        if not self.has_ray:
            return False
        from clustertrain.driver.ray_watch import has_ended

        return has_ended()


@dataclass(frozen=True)
class GivenRay(ElasticCluster):
    """An existing Ray cluster, which other users may share.

    `resize_after_s` is 0 for a fixed number of workers.
    """

    address: str
    resources: Resources
    deadline: Deadline
    resize_after_s: float
    outlives_run = True

    def connect(self, attempt: Attempt, world_sizes: Sequence[int]) -> str:
        import ray

        from clustertrain.driver.connection import connect_to

        connect_to(
            self.address,
            f"RAY_ADDRESS={self.address}",
            "Start that cluster, set RAY_AUTH_TOKEN_PATH to its token file, or unset RAY_ADDRESS.",
        )
        self.check_resources(world_sizes[0], ray.cluster_resources())
        self.wait_for_workers(attempt, world_sizes)
        return self.address

    @property
    def per_worker(self) -> Mapping[str, float]:
        return worker_resources(self.resources)

    def wait_for_workers(self, attempt: Attempt, world_sizes: Sequence[int]) -> None:
        """Wait until the nodes have room for the largest group or, after `resize_after_s`, for a smaller one.

        A fixed number of workers has no wait: Ray Train waits for their resources itself.

        Raises:
            ClusterError: there is no room for the smallest group within the deadline.
            RunStopped: a stop was requested during the wait.
        """
        timeout_s = self.deadline.seconds
        if len(world_sizes) == 1 or self.has_room_in_time(attempt, world_sizes, "nodes", timeout_s):
            return
        raise ClusterError(
            f"The Ray cluster at {self.address} has room for {self.room(attempt)} workers "
            f"after {self.deadline}, and the job needs at least {world_sizes[0]}.\n"
            "Add nodes, wait for other users of the cluster, or lower the minimum of resources.workers."
        )

    def check_resources(self, world_size: int, available: Mapping[str, float]) -> None:
        """Check that the cluster has CPUs and GPUs for all workers.

        Raises:
            ClusterError: it has too few; the message names the resource and the numbers.
        """
        for kind, each in (("CPU", self.resources.cpus_per_worker), ("GPU", self.resources.gpus_per_worker)):
            if round(world_size * each, 6) > available.get(kind, 0):
                raise ClusterError(
                    f"{world_size} workers × {each:g} {kind} = {world_size * each:g} {kind}s, "
                    f"and the Ray cluster at {self.address} has {available.get(kind, 0):g}.\n"
                    f"Lower resources.workers or resources.{kind.lower()}s_per_worker, or add nodes."
                )
