"""The driver's interface to a Ray cluster; launchers/NAME/ray.py implements it for each launcher."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clustertrain.driver.world_size import Workers
from clustertrain.errors import EXIT_CLUSTER, ClusterError, RunStopped
from clustertrain.job.launcher_plugins import part_of, plugin_of
from clustertrain.job.model import Job
from clustertrain.job.sections import Resources
from clustertrain.node.ray_settings import OBJECT_STORE_BYTES, WORKER_SLOT
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import failed

_POLL_S = 0.1


@dataclass(frozen=True)
class Deadline:
    """How long something may take, and the key of the job file that sets it."""

    seconds: float
    key: str

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.key})"


class RayNotUp(ClusterError):
    """Ray did not start on a node within the deadline; on another node it may."""


class RayCluster(ABC):
    """The Ray cluster of a run, seen from its driver.

    Attributes:
        name: Ray, and where its head is, for messages.
        deadline: how long `connect` may take.
        outlives_run: Ray keeps running when the driver ends, so the driver releases its resources there.
        is_this_machine: all workers run on the driver's machine.
        has_ray: there is one. Without it the workers are forks on the driver's machine.
        resize_after_s: how long missing nodes are waited for, and how long new ones must have been there.
        has_worker_slots: each node offers as many WORKER_SLOTs as it gets workers.
    """

    name: str = "Ray"
    deadline: Deadline
    outlives_run: ClassVar[bool] = False
    is_this_machine: ClassVar[bool] = False
    has_ray: bool = True
    resize_after_s: float = 0.0
    has_worker_slots: ClassVar[bool] = False

    def prepare(self) -> None:  # noqa: B027  most have nothing to prepare
        """Start what can start before this process imports Ray and has threads; `connect` follows."""

    @abstractmethod
    def connect(self, attempt: Attempt, world_sizes: Sequence[int]) -> str:
        """Connect this process to Ray, wait for the nodes, and return the address.

        On one machine it starts Ray first.

        Args:
            world_sizes: the allowed numbers of workers, ascending; one if this is not an ElasticCluster.

        Raises:
            RayNotUp: Ray did not start on all nodes in time; the launcher determines what follows.
            ClusterError: Ray does not start or answer, nodes are missing, or the cluster is too small.
            RunStopped: a stop was requested meanwhile.
        """

    def result_of_late_ray(self, job: Job, attempt: Attempt, text: str) -> Result:
        """Return the result of an attempt whose Ray was not up within the deadline."""
        return failed(attempt, text, EXIT_CLUSTER)

    def wait_for_workers(self, attempt: Attempt, world_sizes: Sequence[int]) -> None:  # noqa: B027  most have no wait
        """Wait, after a failure, until there is room for the workers again. Raises as `connect`.

        Returns at once if a lost node is not replaced during the run.
        """

    def workers_now(self, attempt: Attempt, world_sizes: Sequence[int]) -> Workers:
        """Return the workers that the next start has: as many as there is room for."""
        return Workers(world_sizes[-1])

    def can_do_without(self, attempt: Attempt, node_id: str, world_sizes: Sequence[int]) -> bool:
        """Return whether the nodes that the run has, without this one, have room for the workers."""
        return False

    def is_gone(self) -> bool:
        """Return whether Ray has ended before the driver; the launcher then knows the cause of an error."""
        return False


def worker_resources(resources: Resources, *, has_slots: bool = False) -> dict[str, float]:
    """Return the resources that one worker requests from Ray."""
    each: dict[str, float] = {
        "CPU": resources.cpus_per_worker,
        "GPU": float(resources.gpus_per_worker),
        "memory": float(resources.memory_per_worker_bytes or 0),
        WORKER_SLOT: float(has_slots),
    }
    return {kind: value for kind, value in each.items() if value}


def node_parameters(resources: Resources, workers: int, address: str, folder: Path) -> dict[str, object]:
    """Return fields of Ray's RayParams for a node with so many workers.

    They leave out what no run uses: the dashboard's server, the autoscaler and the log monitor. Each of these
    costs 0.7 s of CPU.

    Every size is set, because Ray's defaults come from the whole machine.

    Args:
        address: of this node.
        folder: private, with a short path. Ray opens the folder that it makes there to all users.
    """
    return {
        "node_ip_address": address,
        "temp_dir": str(folder / "r"),
        "num_cpus": max(1, math.ceil(workers * resources.cpus_per_worker)),
        "num_gpus": workers * resources.gpus_per_worker,
        "resources": {WORKER_SLOT: workers},
        "memory": workers * resources.memory_per_worker_bytes if resources.memory_per_worker_bytes else None,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
    }


def ray_cluster_of(launcher: str, job: Job) -> RayCluster:
    """Return the Ray cluster of an attempt that this launcher started.

    Raises:
        JobError: that launcher is not installed here, or cannot be imported.
    """
    cluster: RayCluster = part_of(launcher, plugin_of(launcher).connect)(job)
    return cluster


def all_there(
    attempt: Attempt, are_there: Callable[[], bool], what: str, timeout_s: float, poll_s: float = _POLL_S
) -> bool:
    """Wait until `are_there()` is true; False if it is not after `timeout_s` seconds. `what`: nodes, pods.

    Raises:
        RunStopped: a stop was requested meanwhile.
    """

    def are_there_or_stopped() -> bool:
        if are_there():
            return True
        if attempt.stop.read() is not None:
            raise RunStopped(f"Stopped before all {what} were there.", checkpointed=False)
        return False

    return wait_until(are_there_or_stopped, timeout_s, poll_s)
