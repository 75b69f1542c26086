"""The Ray cluster that KubeRay creates for a RayJob, and how the driver in the head's pod connects to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clustertrain.driver.elastic_cluster import ElasticCluster
from clustertrain.driver.ray_cluster import Deadline, RayCluster, all_there
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.node.ray_settings import WORKER_SLOT
from clustertrain.run_files.folder.run_dir import Attempt


def ray_cluster(job: Job) -> RayCluster:
    """Return the cluster of this pod; Ray sets RAY_ADDRESS for the entrypoint of a job."""
    deadline = Deadline(job.section(Kubernetes).start_deadline_s, "kubernetes.start_deadline")
    return PodRay(os.environ["RAY_ADDRESS"], deadline, job.failures.resize_after_s)


@dataclass(frozen=True)
class PodRay(ElasticCluster):
    """Ray in pods. KubeRay replaces a pod that is lost; the new pod may wait long for a node."""

    address: str
    deadline: Deadline
    resize_after_s: float
    outlives_run = True
    has_worker_slots = True

    @property
    def per_worker(self) -> Mapping[str, float]:
        return {WORKER_SLOT: 1.0}

    def connect(self, attempt: Attempt, world_sizes: Sequence[int]) -> str:
        from clustertrain.driver.connection import connect_to

        connect_to(
            self.address,
            f"Ray of this pod at {self.address}",
            "`kubectl logs` of the head's pod shows what Ray printed.",
        )
        self.wait_for_workers(attempt, world_sizes)
        return self.address

    def wait_for_workers(self, attempt: Attempt, world_sizes: Sequence[int]) -> None:
        """Wait until the pods have a slot for each worker of the largest group.

        After `resize_after_s`, a smaller group is enough.

        Ray Train's own wait ends after two minutes, and counts as a failure each time.

        Raises:
            ClusterError: slots are missing at the deadline.
            RunStopped: a stop was requested during the wait.
        """
        import ray

        def slots() -> float:
            return float(ray.cluster_resources().get(WORKER_SLOT, 0))

        if len(world_sizes) > 1:
            are_there = self.has_room_in_time(attempt, world_sizes, "pods", self.deadline.seconds)
        else:
            are_there = all_there(attempt, lambda: slots() >= world_sizes[0], "pods", self.deadline.seconds)
        if not are_there:
            raise ClusterError(
                f"Waiting for pods of {world_sizes[0]} workers, have {slots():g} after {self.deadline}.\n"
                "`kubectl describe pod` shows what the others wait for."
            )
