"""Ray Train's hooks for the start of a worker group: what group/start.py does, in Ray Train's controller."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Any

import ray.train
import ray.util
from ray.train.backend import Backend
from ray.train.torch import TorchConfig, get_devices

from clustertrain.driver.ray_internals import ERROR_LOGGER
from clustertrain.worker import setup
from clustertrain.worker.machine.raylet_watch import end_with_raylet
from clustertrain.worker.place import Place
from clustertrain.worker.restart_plan import RestartPlan


@dataclass(kw_only=True)
class ClustertrainTorchConfig(TorchConfig):  # type: ignore[misc]  # ray ships no types
    """TorchConfig for all three entry points: data is staged before the process group is created.

    Ray's public callbacks have no hook for a start of the workers.

    Attributes:
        start: the RayStart of this start, which stays in the driver.
    """

    start: Any
    is_script: bool

    def __reduce__(self) -> tuple[type[TorchConfig], tuple[()]]:
        """Pickle this object for the workers as a plain TorchConfig."""
        return TorchConfig, ()

    @property
    def backend_cls(self) -> type[Backend]:
        return ClustertrainBackend

    @property
    def train_func_context(self) -> Any:
        # A script's parent must not touch CUDA: it would hold memory on the child's device.
        return contextlib.nullcontext if self.is_script else super().train_func_context


class ClustertrainBackend(Backend):  # type: ignore[misc]  # ray ships no types
    """Runs in the controller, once before each start of the worker group.

    The other hooks do nothing: `begin` has made the process group, and the processes end right after
    `on_shutdown`. To destroy the group there would wait 30 s for dead ranks.
    """

    share_cuda_visible_devices = True  # as Ray's own for torch: LOCAL_RANK is an index into them

    def on_start(self, worker_group: Any, backend_config: ClustertrainTorchConfig) -> None:
        backend_config.start.begin(worker_group)


def set_up(plan: RestartPlan) -> None:
    """Set up a worker of Ray for this start: the first step in it."""
    end_with_raylet()
    # train.py prints the exception of the train function, with all its causes.
    logging.getLogger(ERROR_LOGGER).setLevel(logging.CRITICAL)
    context = ray.train.get_context()
    place = Place(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        local_world_size=context.get_local_world_size(),
        node_rank=context.get_node_rank(),
        address=ray.util.get_node_ip_address(),
        gpus=tuple(d.index for d in get_devices()) if plan.job.resources.gpus_per_worker else (),
    )
    setup.set_up_process(plan, place)
