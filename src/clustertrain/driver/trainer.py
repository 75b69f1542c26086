"""One start of the worker group with Ray Train: one call of `fit`, which repeats nothing.

    stock   driver, controller, autoscaling coordinator, placement-group cleaner, data sets' manager, workers
    here    driver, which is the controller as well, autoscaling coordinator, workers

Ray itself removes the placement groups of a driver that has ended.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError
from ray.util import remove_placement_group

from clustertrain.driver.backend import ClustertrainTorchConfig, set_up
from clustertrain.driver.calls import NoAnswer, Worker
from clustertrain.driver.deadline import calling_after, ending_after
from clustertrain.driver.group.start import GroupNotStarted, GroupStart
from clustertrain.driver.growth import Growth
from clustertrain.driver.ray_cluster import worker_resources
from clustertrain.driver.ray_internals import (
    RETRYABLE_CONTROLLER_ERRORS,
    DatasetsCallback,
    PlacementGroupCleanerCallback,
    TrainController,
    WorkerGroup,
    be_no_actor,
)
from clustertrain.driver.world_size import Workers
from clustertrain.errors import EXIT_CLUSTER
from clustertrain.job.file import parse_job
from clustertrain.job.start_environment import start_environment
from clustertrain.node import variables
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import JOB_YAML
from clustertrain.run_files.result import failed, write_result
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.worker import train as worker

_ENDS_WITHIN_S = 30.0  # of the workers' processes, after which the call of Ray fails
_NODE_ID = "ray.io/node-id"  # a label that each node of Ray has
_NOT_STARTED = (ActorUnschedulableError, *RETRYABLE_CONTROLLER_ERRORS)


class RayStart:
    """One start of the group. Ray Train calls `begin` and `polled`, through the classes below.

    They raise nothing into Ray Train: an error is kept, and the processes of the workers are ended, so that
    its next call of them fails.

    Attributes:
        placement_group: that of the workers' processes, once there is one.
    """

    def __init__(self, start: GroupStart, growth: Growth) -> None:
        self._start, self._growth = start, growth
        self.placement_group: Any = None
        self._group: Any = None  # of Ray Train, once its processes run
        self._error: Exception | None = None
        self._limit = ExitStack()  # of what Ray Train does now

    def has_trained(self, trainer: TorchTrainer) -> bool:
        """Start the workers. Returns whether their training has returned in all ranks.

        Raises:
            Exception: as GroupStart.run, except GroupNotStarted, or what ended Ray Train's controller.
        """
        try:
            with self._limit:
                self._limit_processes()
                trainer.fit()
        except TrainingFailedError as error:
            self._explain(getattr(error, "controller_failure", None))
            return False
        finally:
            self._end_group()
        return True

    def begin(self, group: Any) -> None:
        """Start the ranks up to their process group, once their processes run.

        Limit the call that follows as well: in it Ray Train has each rank begin its training.
        """
        self._limit.close()
        self._group = group
        with self._keeping_error():
            self._start.run(group, set_up)
            self._limit.enter_context(calling_after(self._start.answer_s, self._end_silent))

    def polled(self, errors: Mapping[int, Exception]) -> None:
        """Handle a poll of the group, which trains, or has failed with these errors by rank."""
        self._limit.close()
        with self._keeping_error():
            if not errors:
                self._growth.look()
            elif self._error is None:  # else the ranks were ended
                self._start.has_failed(errors)
                self._kill()  # Ray Train would wait 5 s for one that is stopped

    def _explain(self, failure: Exception | None) -> None:
        """Return if another start may help, and raise the error otherwise.

        Args:
            failure: what ended Ray Train's controller; None if a worker failed.
        """
        if isinstance(self._error, GroupNotStarted):
            traceback.print_exception(self._error)
        elif self._error is not None:
            raise self._error
        elif isinstance(failure, RayActorError):  # a worker died as its training began
            self._start.has_failed(dict.fromkeys(range(len(self._workers())), failure))
        elif failure is not None and not isinstance(failure, _NOT_STARTED):
            raise failure

    def _limit_processes(self) -> None:
        """Limit the start of the workers' processes, for which Ray has no limit."""
        seconds, attempt = self._start.answer_s, self._start.ref.open()
        logs = command_on(attempt.uri, "logs", "--driver")
        text = (
            f"Ray did not start the processes of the workers within {seconds:g} s "
            f"(failures.watchdog.first_step).\n`{logs}` shows what it waits for."
        )

        def end_workers() -> None:
            """End the processes, one of which may be stopped by a signal: what waits for them then fails."""
            EventLog(attempt.events).write("warning", text=text)
            if self.placement_group is not None:
                remove_placement_group(self.placement_group)

        def write_end() -> None:
            write_result(attempt, failed(attempt, text, EXIT_CLUSTER))

        self._limit.enter_context(calling_after(seconds, end_workers))
        self._limit.enter_context(ending_after(seconds + _ENDS_WITHIN_S, write_end))

    @contextmanager
    def _keeping_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  raised when `fit` has returned
            self._error = self._error or error
            self._kill()

    def _end_silent(self) -> None:
        self._start.has_lost_worker(NoAnswer("a rank does not begin its training"))
        self._kill()  # the call of Ray Train then fails

    def _workers(self) -> Sequence[Worker]:
        return self._group.get_workers() if self._group is not None and self._group.has_started() else ()

    def _kill(self) -> None:
        for each in self._workers():
            ray.kill(each.actor)

    def _end_group(self) -> None:
        """End a group whose training had not begun.

        Ray Train does not end it: the ranks that wait in the rendezvous would keep their CPUs and GPUs, and
        the next start would wait for them forever.
        """
        if self._workers():
            self._kill()
            self._group.abort()


def has_trained(start: GroupStart, growth: Growth, workers: Workers, *, has_slots: bool) -> bool:
    """Start the group once, as RayStart.has_trained.

    Args:
        has_slots: as RayCluster.has_worker_slots.
    """
    this, resources = RayStart(start, growth), start.job.resources
    variables_of_worker = start_environment(parse_job(start.job_yaml, JOB_YAML))
    trainer = _Trainer(
        worker.train_loop_per_worker,
        torch_config=ClustertrainTorchConfig(start=this, is_script=start.job.is_script),
        scaling_config=ScalingConfig(
            num_workers=workers.count,
            use_gpu=resources.gpus_per_worker > 0,
            resources_per_worker=worker_resources(resources, has_slots=has_slots),
            label_selector={_NODE_ID: f"!in({','.join(sorted(workers.left_out))})"}
            if workers.left_out
            else None,
        ),
        run_config=RunConfig(
            name="ray",
            storage_path=str(start.ref.open().path),
            failure_config=FailureConfig(
                max_failures=0, controller_failure_limit=0, max_preemption_failures=0
            ),
            worker_runtime_env={"env_vars": variables_of_worker},
        ),
    )
    return this.has_trained(trainer)


class _Trainer(TorchTrainer):  # type: ignore[misc]  # ray ships no types
    """TorchTrainer whose `fit` runs the controller in this process.

    An actor would import torch and Ray Train once more before it starts the first worker.
    """

    def _create_default_callbacks(self) -> list[Any]:
        unneeded = (DatasetsCallback, PlacementGroupCleanerCallback)
        return [c for c in super()._create_default_callbacks() if not isinstance(c, unneeded)]

    def _initialize_and_run_controller(self, **fields: Any) -> Any:
        be_no_actor()
        controller = TrainController(**fields)
        controller.worker_group_cls = _Group
        asyncio.run(controller.run())
        return controller.get_result()


def in_node_order(workers: Sequence[Worker], nodes: Sequence[str]) -> list[Worker]:
    """Return the workers in the order of their nodes' host names.

    Nodes that are not named come last, as they were.

    Ray Train numbers the nodes in the order in which their workers were placed. SLURM lists nodes in the
    order of its topology, so that neighbours in a ring of ranks are near each other in the network.
    """
    position = {name.partition(".")[0]: number for number, name in enumerate(nodes)}
    return sorted(workers, key=lambda w: position.get(w.metadata.hostname.partition(".")[0], len(nodes)))


class _Group(WorkerGroup):  # type: ignore[misc]
    @property
    def _ray_start(self) -> RayStart:
        start: RayStart = self._train_run_context.backend_config.start
        return start

    def _create_workers(self, num_workers: int, placement_group: Any, *args: Any, **fields: Any) -> list[Any]:
        self._ray_start.placement_group = placement_group
        workers = super()._create_workers(num_workers, placement_group, *args, **fields)
        nodes = list(filter(None, os.environ.get(variables.NODES, "").split(",")))
        return list(WorkerGroup._assign_worker_ranks(in_node_order(workers, nodes)) if nodes else workers)

    def poll_status(self, timeout: float | None = None) -> Any:
        status = super().poll_status(timeout)
        self._ray_start.polled(status.errors)
        return status
