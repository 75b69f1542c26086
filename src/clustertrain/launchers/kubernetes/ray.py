"""The Ray cluster that KubeRay creates for a RayJob, and how the driver in the head's pod connects to it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from clustertrain.driver.ray_cluster import Deadline, RayCluster, all_there
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.node.ray_settings import WORKER_SLOT
from clustertrain.run.folder import Attempt


def ray_cluster(job: Job) -> RayCluster:
    """The cluster of this pod; Ray sets RAY_ADDRESS for the entrypoint of a job."""
    return PodRay(os.environ["RAY_ADDRESS"], job.kubernetes.start_deadline_s)


@dataclass(frozen=True)
class PodRay(RayCluster):
    """Ray in pods. KubeRay replaces a pod that is lost; the new pod may wait long for a node."""

    address: str
    start_deadline_s: float
    outlives_run = True
    has_worker_slots = True

    @property
    def deadline(self) -> Deadline:
        return Deadline(self.start_deadline_s, "kubernetes.start_deadline")

    def connect(self, attempt: Attempt, world_size: int) -> str:
        from clustertrain.driver.connection import connect_to

        connect_to(
            self.address,
            f"Ray of this pod at {self.address}",
            "`kubectl logs` of the head's pod shows what Ray printed.",
        )
        self.wait_for_workers(attempt, world_size)
        return self.address

    def wait_for_workers(self, attempt: Attempt, world_size: int) -> None:
        """Wait until the pods have a slot for each worker.

        Ray Train's own wait ends after two minutes, and counts as a failure each time.

        Raises:
            ClusterError: slots are missing after `start_deadline_s`.
            RunStopped: a stop was requested during the wait.
        """
        import ray

        def slots() -> float:
            return float(ray.cluster_resources().get(WORKER_SLOT, 0))

        if not all_there(attempt, lambda: slots() >= world_size, "pods", self.start_deadline_s):
            raise ClusterError(
                f"Waiting for pods of {world_size} workers, have {slots():g} after "
                f"{self.start_deadline_s:g} s (kubernetes.start_deadline).\n"
                "`kubectl describe pod` shows what the others wait for."
            )
