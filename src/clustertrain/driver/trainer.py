"""Ray Train's TorchTrainer without processes that such a run does not need; each takes 1 to 5 s to start.

    stock   driver, controller, autoscaling coordinator, placement-group cleaner, data sets' manager, workers
    here    driver, which is the controller as well, and the workers

What is left out serves a Ray cluster that outlives the run: on such a cluster only the manager of data sets
is left out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from ray import kill
from ray.exceptions import ActorUnschedulableError, RayActorError
from ray.train.torch import TorchTrainer
from ray.util import remove_placement_group

from clustertrain import variables
from clustertrain.driver.backend import end_group
from clustertrain.driver.calls import NoAnswer
from clustertrain.driver.deadline import calling_after, ending_after
from clustertrain.driver.ray_internals import (
    ControllerCallback,
    DatasetsCallback,
    FailureDecision,
    FixedScalingPolicy,
    PlacementGroupCleanerCallback,
    TrainController,
    WorkerGroup,
    WorkerGroupCallback,
    WorkerGroupStartupFailedError,
    be_actor,
    control_with,
)
from clustertrain.driver.retry_policy import RetryPolicy
from clustertrain.errors import EXIT_CLUSTER, ClusterTrainError
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.command_line import command_on
from clustertrain.run.result import failed, write_result
from clustertrain.run.streams.event_log import EventLog

_T = TypeVar("_T")
_ENDS_WITHIN_S = 30.0  # of the workers' processes, after which the call of Ray fails


class StartDeadline(WorkerGroupCallback):  # type: ignore[misc]  # ray ships no types
    """A deadline for the start of the workers' processes, for which Ray has none. It ends the processes, and
    the start is repeated; if that does not help, it ends the run.

    It is the first callback: those after it are the calls of GroupStart, which have limits.

    Attributes:
        placement_group: that of the processes, once there are any.
    """

    def __init__(self, ref: AttemptRef, seconds: float) -> None:
        self._ref, self._seconds = ref, seconds
        self.placement_group: Any = None

    @contextmanager
    def on_worker_group_start(self) -> Iterator[None]:
        attempt = self._ref.open()
        logs = command_on(attempt.uri, "logs", "--driver")
        text = (
            f"Ray did not start the processes of the workers within {self._seconds:g} s "
            f"(failures.watchdog.first_step).\n`{logs}` shows what it waits for."
        )

        def end_workers() -> None:
            """End the processes, one of which may be stopped by a signal: what waits for them then fails."""
            EventLog(attempt.events).write("warning", text=text)
            if self.placement_group is not None:
                remove_placement_group(self.placement_group)

        def write_end() -> None:
            write_result(attempt, failed(attempt, text, EXIT_CLUSTER))

        self.placement_group = None
        with ExitStack() as self._waiting:
            self._waiting.enter_context(calling_after(self._seconds, end_workers))
            self._waiting.enter_context(ending_after(self._seconds + _ENDS_WITHIN_S, write_end))
            yield

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._waiting.close()


class FailureWatch(RetryPolicy, WorkerGroupCallback, ControllerCallback):  # type: ignore[misc]
    """The hooks that Ray Train's controller calls around a start of the worker group and its failure."""

    failed_start = WorkerGroupStartupFailedError

    def after_worker_group_start(self, worker_group: _Group) -> None:
        """Limit the one call of the start that follows: Ray Train has each rank begin its training."""
        worker_group.last_call.enter_context(
            calling_after(self.answer_s, lambda: self._end_silent(worker_group))
        )

    def _end_silent(self, worker_group: _Group) -> None:
        self.has_lost_worker(NoAnswer("a rank does not begin its training"))
        for worker in worker_group.get_workers():
            kill(worker.actor)  # the call of Ray Train then fails

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        if worker_group_status.errors:
            self.has_failed(worker_group_status.errors)
        else:
            self.look_for_room()

    def before_controller_execute_failure_decision(self, failure_decision: FailureDecision) -> None:
        if failure_decision == FailureDecision.RETRY:
            self.before_restart()


class KitTrainer(TorchTrainer):  # type: ignore[misc]  # ray ships no types
    """TorchTrainer whose `fit` runs the controller in this process.

    An actor would import torch and Ray Train once more before it starts the first worker.

    Args:
        outlives_run: as RayCluster's; the controller is an actor then.
    """

    def __init__(self, *args: Any, outlives_run: bool, start_deadline: StartDeadline, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._outlives_run = outlives_run
        self._start_deadline = start_deadline

    def _create_default_callbacks(self) -> list[Any]:
        unneeded: tuple[type, ...] = (DatasetsCallback,)  # data sets are files here
        if not self._outlives_run:
            unneeded += (PlacementGroupCleanerCallback,)
        defaults = super()._create_default_callbacks()
        return [self._start_deadline, *(c for c in defaults if not isinstance(c, unneeded))]

    def _initialize_and_run_controller(self, **fields: Any) -> Any:
        if self._outlives_run:
            control_with(_Controller)
            return super()._initialize_and_run_controller(**fields)
        be_actor(_NoActor())
        controller = _Controller(**{**fields, "scaling_policy": _NodesAreThere(self.scaling_config)})
        asyncio.run(controller.run())
        return controller.get_result()


class _NodesAreThere(FixedScalingPolicy):  # type: ignore[misc]
    """A worker group of fixed size that requests no nodes from an autoscaler."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Does nothing. Ray Train would start the coordinator's process here, and wait for it."""

    def _maybe_send_resource_request(self) -> None:
        """Does nothing."""


def in_node_order(workers: Sequence[Any], nodes: Sequence[str]) -> list[Any]:
    """The workers in the order of their nodes' host names; nodes that are not named come last, as they were.

    Ray Train numbers the nodes in the order in which their workers were placed. SLURM lists nodes in the
    order of its topology, so that neighbours in a ring of ranks are near each other in the network.
    """
    position = {name.partition(".")[0]: number for number, name in enumerate(nodes)}
    return sorted(workers, key=lambda w: position.get(w.metadata.hostname.partition(".")[0], len(nodes)))


class _Group(WorkerGroup):  # type: ignore[misc]
    def _start_impl(self, *args: Any) -> None:
        """As in Ray Train, which ends the run if a worker dies in the last call, that starts its training."""
        try:
            with ExitStack() as self.last_call:
                super()._start_impl(*args)
        except ActorUnschedulableError as error:  # their group was removed before Ray had a process for each
            raise WorkerGroupStartupFailedError("Ray has not started all workers.") from error
        except RayActorError as error:
            if self.has_started():
                ranks = [w.distributed_context.world_rank for w in self.get_workers()]
                for watch in self._of_kit(FailureWatch):
                    watch.has_failed(dict.fromkeys(ranks, error))
                end_group(self)
            raise WorkerGroupStartupFailedError("A worker died as its training began.") from error

    def _create_workers(self, num_workers: int, placement_group: Any, *args: Any, **fields: Any) -> list[Any]:
        for deadline in self._of_kit(StartDeadline):
            deadline.placement_group = placement_group
        workers = super()._create_workers(num_workers, placement_group, *args, **fields)
        nodes = list(filter(None, os.environ.get(variables.NODES, "").split(",")))
        if not nodes or fields.get("replica_group_size") is not None:  # a part of a group keeps its ranks
            return list(workers)
        return list(WorkerGroup._assign_worker_ranks(in_node_order(workers, nodes)))

    def _of_kit(self, kind: type[_T]) -> list[_T]:
        """Its callbacks of this class."""
        return [callback for callback in self._callbacks if isinstance(callback, kind)]


class _NoActor:
    """Replaces the controller's handle in workers, because it is no actor here. Ray Train uses one method."""

    @property
    def get_all_reported_checkpoints(self) -> Any:
        raise ClusterTrainError(
            "ray.train.get_all_reported_checkpoints() is not available: clustertrain writes them itself.\n"
            "clustertrain.session.restore() gives the newest one."
        )


class _Controller(TrainController):  # type: ignore[misc]
    worker_group_cls = _Group
