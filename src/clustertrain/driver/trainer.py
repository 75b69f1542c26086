"""Ray Train's TorchTrainer without processes that such a run does not need; each takes 1 to 5 s to start.

    stock   driver, controller, autoscaling coordinator, placement-group cleaner, data sets' manager, workers
    here    driver, which is the controller as well, and the workers

What is left out serves a Ray cluster that outlives the run: on such a cluster only the manager of data sets
is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup

from clustertrain.errors import ClusterTrainError


class KitTrainer(TorchTrainer):  # type: ignore[misc]  # ray ships no types
    """TorchTrainer whose `fit` runs the controller in this process.

    An actor would import torch and Ray Train once more before it starts the first worker.

    Args:
        outlives_run: as RayCluster's; the controller is an actor then.
    """

    def __init__(self, *args: Any, outlives_run: bool, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._outlives_run = outlives_run

    def _create_default_callbacks(self) -> list[Any]:
        unneeded: tuple[type, ...] = (DatasetsCallback,)  # data sets are files here
        if not self._outlives_run:
            unneeded += (PlacementGroupCleanerCallback,)
        return [c for c in super()._create_default_callbacks() if not isinstance(c, unneeded)]

    def _initialize_and_run_controller(self, **fields: Any) -> Any:
        if self._outlives_run:
            return super()._initialize_and_run_controller(**fields)
        controller = _Controller(**{**fields, "scaling_policy": _NodesAreThere(self.scaling_config)})
        asyncio.run(controller.run())
        return controller.get_result()


class _NodesAreThere(FixedScalingPolicy):  # type: ignore[misc]
    """A worker group of fixed size that requests no nodes from an autoscaler."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Does nothing. Ray Train would start the coordinator's process here, and wait for it."""

    def _maybe_send_resource_request(self) -> None:
        """Does nothing."""


class _Group(WorkerGroup):  # type: ignore[misc]
    def _init_train_context_on_workers(
        self, workers: Sequence[Any], sync_actor: Any, train_context_args: Mapping[str, Sequence[Any]]
    ) -> None:
        """As in Ray Train, except for the handle of the controller, which is not an actor here."""
        for_all = {
            "train_run_context": self._train_run_context,
            "synchronization_actor": sync_actor,
            "storage_context": self._storage_context,
            "worker_callbacks": self._worker_callbacks_to_propagate,
            "controller_actor": _NoActor(),
        }
        contexts = []
        for i, w in enumerate(workers):
            own = {name: values[i] for name, values in train_context_args.items()}
            context = w.actor.init_train_context.remote(
                distributed_context=w.distributed_context, **for_all, **own
            )
            contexts.append(context)
        ray.get(contexts)
        self._decorate_worker_log_file_paths(workers)


class _NoActor:
    """Replaces the controller's handle in workers. Ray Train uses one method of it."""

    @property
    def get_all_reported_checkpoints(self) -> Any:
        raise ClusterTrainError(
            "ray.train.get_all_reported_checkpoints() is not available: clustertrain writes them itself.\n"
            "clustertrain.session.restore() gives the newest one."
        )


class _Controller(TrainController):  # type: ignore[misc]
    worker_group_cls = _Group
