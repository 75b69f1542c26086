"""Job → TorchTrainer.fit → result.json; the process that the guardian starts.

It writes only to files; the process that displays the run reads them. It ends with os._exit, since Ray's own
shutdown waits for processes that the guardian ends faster.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from clustertrain import variables
from clustertrain.driver.deadline import ending_after
from clustertrain.driver.elastic_cluster import ElasticCluster
from clustertrain.driver.ray_cluster import RayCluster, RayNotUp, ray_cluster_of, worker_resources
from clustertrain.driver.ray_internals import end_by_sigterm
from clustertrain.driver.result_of_fit import causes, of_error, of_outcome
from clustertrain.driver.world_size import OtherWorkers, Workers
from clustertrain.errors import (
    EXIT_DRIVER_FAILED,
    EXIT_RAY_ENDED,
    ClusterTrainError,
    RunStopped,
)
from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.job.start_environment import driver_environment, start_environment
from clustertrain.node.ray_settings import NCCL_HANG_DETECTOR, RAY_ENVIRONMENT
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.claims import Heartbeat, claim_of
from clustertrain.run.command_line import command_on
from clustertrain.run.folder import JOB_YAML, Attempt
from clustertrain.run.result import write_result
from clustertrain.run.streams.event_log import EventLog
from clustertrain.run.working_folder import copy_code
from clustertrain.worker.code.user_code import check_code, code_folders, enter_code
from clustertrain.worker.machine.gc_tuning import HOOK, collect_rarely
from clustertrain.worker.machine.gpus import check_gpus

_MARGIN_S = 10.0
_NODE_ID = "ray.io/node-id"  # a label that each node of Ray has
_SHUTDOWN_WITHIN_S = 60.0


def _import_all(run: _Run) -> None:
    """Import the user's code, torch and Ray Train, in a thread while Ray's processes start: it saves 2 s."""
    check_code(run.job)
    import_module("clustertrain.driver.backend")
    import_module("clustertrain.driver.trainer")


def main(where: str) -> int:
    """Run the attempt that the text of an AttemptRef names; returns the exit code of its result."""
    attempt = AttemptRef.from_text(where).open()
    claim = claim_of(attempt)
    job_yaml = (attempt.run.store.read_or_none(attempt.job_key) or b"").decode()
    env = json.loads(os.environ.pop(variables.ENV))
    job = parse_job(job_yaml, JOB_YAML).model_copy(update={"env": env})
    cluster = ray_cluster_of(claim.launcher, job)
    is_elastic = isinstance(cluster, ElasticCluster)
    sizes = _possible(job, claim.world_size) if is_elastic else (claim.world_size,)
    code = _run(_Run(attempt, job_yaml, job, cluster, sizes))
    if cluster.outlives_run:
        import ray

        with ending_after(_SHUTDOWN_WITHIN_S, lambda: None):  # the attempt has its result already
            ray.shutdown()  # gives the run's CPUs and GPUs back at once
    return code


def _possible(job: Job, most: int) -> tuple[int, ...]:
    """The numbers of workers that the start may have, ascending; the attempt was claimed with the largest."""
    return tuple(size for size in job.world_sizes if size <= most) or (most,)


@dataclass(frozen=True)
class _Run:
    """
    Attributes:
        job_yaml: the job as the attempt has recorded it.
        world_sizes: the numbers of workers that a start of the group may have, ascending.
    """

    attempt: Attempt
    job_yaml: str
    job: Job
    cluster: RayCluster
    world_sizes: tuple[int, ...]

    @property
    def ref(self) -> AttemptRef:
        return AttemptRef.of(self.attempt)

    def note(self, text: str) -> None:
        EventLog(self.attempt.events).write("note", text=text)

    def ending_without_answer(self) -> AbstractContextManager[None]:
        """End this process and its attempt if Ray does not answer within its deadline."""
        # A connection that reports its own failure at the deadline has the better message.
        within_s = self.cluster.deadline.seconds + _MARGIN_S
        return ending_after(within_s, self._end_without_answer)

    def _end_without_answer(self) -> None:
        text = (
            f"{self.cluster.name} does not answer: a call to it did not return within "
            f"{self.cluster.deadline}.\n"
            f"`{command_on(self.attempt.uri, 'logs', '--driver')}` shows which one."
        )
        write_result(self.attempt, self.cluster.result_of_late_ray(self.job, self.attempt, text))


def _run(run: _Run) -> int:
    with ExitStack() as at_end:
        try:
            _prepare(run)
            at_end.enter_context(Heartbeat(run.attempt))  # a thread
            _fit(run)
            result = of_outcome(run.attempt)
        except BaseException as error:  # noqa: BLE001  every error becomes the result, and its traceback is logged
            traceback.print_exc()
            if not isinstance(error, ClusterTrainError | RunStopped) and run.cluster.is_gone():
                return EXIT_RAY_ENDED  # the launcher determines how Ray ended
            if isinstance(error, RayNotUp):
                result = run.cluster.result_of_late_ray(run.job, run.attempt, str(error))
            else:
                result = of_error(run.attempt, error)
        return write_result(run.attempt, result).exit_code


def _prepare(run: _Run) -> None:
    """What comes before the first thread of this process, of which the fork server may be a fork."""
    _set_environment(run.job)
    enter_code(run.job)
    collect_rarely()
    run.cluster.prepare()


def _fit(run: _Run) -> None:
    if run.cluster.has_ray:
        import_module("ray")  # before the thread starts: two threads must not import one package at once
        end_by_sigterm()
        imports = ThreadPoolExecutor(1).submit(_import_all, run)
        _connect(run, imports)
        imports.result()
    elif run.job.resources.gpus_per_worker:
        check_gpus(run.world_sizes[-1], run.job.resources.gpus_per_worker)
    if run.attempt.stop.read() is not None:
        raise RunStopped("Stopped before the workers started.", checkpointed=False)
    if os.environ.get(variables.CODE):  # else the workers work in the user's own folder
        copy_code(run.attempt.run, [*map(str, code_folders(run.job))], run.note)
    workers: Workers | None = run.cluster.workers_now(run.attempt, run.world_sizes)
    while workers is not None:
        workers = _trained(run, workers)


def _set_environment(job: Job) -> None:
    os.environ.update(RAY_ENVIRONMENT)
    os.environ.update(driver_environment(job))
    if job.resources.gpus_per_worker:
        os.environ.setdefault(NCCL_HANG_DETECTOR, "1")


def _trained(run: _Run, workers: Workers) -> Workers | None:
    """Train with these workers. Returns those that continue, or None at the end."""
    trainer = _trainer(run, workers) if run.cluster.has_ray else _forked_trainer(run, workers)
    try:
        trainer.fit()
    except Exception as error:
        for each in causes(error):
            if isinstance(each, OtherWorkers):
                others: Workers = each.args[0]
                return others
        raise
    return _next_larger(run.attempt, workers)


def _next_larger(attempt: Attempt, workers: Workers) -> Workers | None:
    """The workers that continue if these saved and returned because there is room for more, else None."""
    restart = attempt.newest_restart()
    request, outcome = (restart.resize.read(), restart.outcome.read()) if restart else (None, None)
    if request is None or outcome is None or outcome.finished or attempt.stop.exists():
        return None
    return replace(workers, count=request.world_size)


def _connect(run: _Run, imports: Future[None]) -> None:
    if run.cluster.is_this_machine and run.job.resources.gpus_per_worker:
        imports.result()  # of torch
        check_gpus(run.world_sizes[-1], run.job.resources.gpus_per_worker)
    started = time.monotonic()
    with run.ending_without_answer():
        address = run.cluster.connect(run.attempt, run.world_sizes)
    seconds = time.monotonic() - started
    EventLog(run.attempt.events).write("ray_started", seconds=seconds, address=address)


def _group_start(run: _Run, policy: Any, workers: Workers) -> Any:
    """What the starts have in common. `policy`: the class of the RetryPolicy."""
    from clustertrain.driver.group.start import GroupStart

    return GroupStart(
        watch=policy(run.ref, run.job.failures.most_restarts, run.cluster, run.world_sizes, workers),
        job_yaml=run.job_yaml,
        env=run.job.env,
        is_script=run.job.is_script,
        is_function=run.job.function is not None,
        most_workers=run.world_sizes[-1],
        limits=run.job.failures.watchdog,
    )


def _forked_trainer(run: _Run, workers: Workers) -> Any:
    from clustertrain.driver.group.forked import ForkedTrainer
    from clustertrain.driver.retry_policy import RetryPolicy

    gpus = run.job.resources.gpus_per_worker
    return ForkedTrainer(_group_start(run, RetryPolicy, workers), workers.count, gpus)


def _trainer(run: _Run, workers: Workers) -> Any:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.config import LoggingConfig

    from clustertrain.driver.backend import KitTorchConfig
    from clustertrain.driver.ray_internals import WORKER_PROCESS_SETUP_HOOK_ENV_VAR
    from clustertrain.driver.trainer import FailureWatch, KitTrainer, StartDeadline
    from clustertrain.worker import train as worker

    job, recorded = run.job, parse_job(run.job_yaml, JOB_YAML)
    scaling = ScalingConfig(
        num_workers=workers.count,
        use_gpu=job.resources.gpus_per_worker > 0,
        resources_per_worker=worker_resources(job.resources, has_slots=run.cluster.has_worker_slots),
        placement_strategy="PACK",
        label_selector={_NODE_ID: f"!in({','.join(sorted(workers.left_out))})"} if workers.left_out else None,
    )
    start = _group_start(run, FailureWatch, workers)
    variables_of_worker = {WORKER_PROCESS_SETUP_HOOK_ENV_VAR: HOOK, **start_environment(recorded)}
    return KitTrainer(
        worker.train_loop_per_worker,
        train_loop_config={},
        torch_config=KitTorchConfig(group_start=start),
        scaling_config=scaling,
        run_config=RunConfig(
            name="ray",
            storage_path=str(run.attempt.path),
            checkpoint_config=CheckpointConfig(
                num_to_keep=1
            ),  # unused: checkpoints are ours, see checkpoints/
            # No limits here: FailureWatch counts the failures without a new checkpoint.
            failure_config=FailureConfig(
                max_failures=-1, controller_failure_limit=-1, max_preemption_failures=-1
            ),
            callbacks=[start.watch],
            logging_config=LoggingConfig(log_level="INFO"),
            worker_runtime_env={"env_vars": variables_of_worker},
        ),
        outlives_run=run.cluster.outlives_run,
        start_deadline=StartDeadline(run.ref, job.failures.watchdog.first_step_s),
    )


if __name__ == "__main__":
    try:
        code = main(*sys.argv[1:])
    except BaseException:  # noqa: BLE001  logged; and os._exit here, too: at a normal exit Ray ends its
        # processes, which ray_watch would report as the death of Ray, and the driver would be started again
        traceback.print_exc()
        code = EXIT_DRIVER_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
