"""Job → the starts of the worker group → result.json; the process that the guardian starts.

In: the folder of an attempt, from a launcher. Out: result.json. starts.py loops over the starts of the group.

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
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module

from clustertrain.driver.deadline import ending_after
from clustertrain.driver.elastic_cluster import ElasticCluster
from clustertrain.driver.ray_cluster import RayCluster, RayNotUp, ray_cluster_of
from clustertrain.driver.ray_internals import end_by_sigterm
from clustertrain.driver.result_of_fit import of_error
from clustertrain.errors import (
    EXIT_DRIVER_FAILED,
    EXIT_RAY_ENDED,
    ClusterTrainError,
    RunStopped,
)
from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.job.start_environment import driver_environment
from clustertrain.node import variables
from clustertrain.node.ray_settings import NCCL_HANG_DETECTOR, RAY_ENVIRONMENT
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.claims import Heartbeat, claim_of
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import JOB_YAML, Attempt
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.working_folder import copy_code
from clustertrain.worker.code.user_code import check_code, code_folders, enter_code
from clustertrain.worker.machine.gc_tuning import collect_rarely
from clustertrain.worker.machine.gpus import check_gpus

_MARGIN_S = 10.0
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
    """Return the numbers of workers that the start may have, ascending.

    The attempt was claimed with the largest.
    """
    return tuple(size for size in job.world_sizes if size <= most) or (most,)


@dataclass(frozen=True)
class _Run:
    """An attempt as its driver runs it, with its job and its cluster.

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

    def end_without_answer(self) -> None:
        """Write the result of an attempt whose Ray did not answer within its deadline."""
        text = (
            f"{self.cluster.name} does not answer: a call to it did not return within "
            f"{self.cluster.deadline}.\n"
            f"`{command_on(self.attempt.uri, 'logs', '--driver')}` shows which one."
        )
        write_result(self.attempt, self.cluster.result_of_late_ray(self.job, self.attempt, text))


def _run(run: _Run) -> int:
    with ExitStack() as at_end:
        try:
            _set_environment(run.job)
            enter_code(run.job)
            collect_rarely()
            run.cluster.prepare()  # before the first thread: the fork server may be a fork of this process
            at_end.enter_context(Heartbeat(run.attempt))  # a thread
            result = _fit(run)
            may_be_of_ray = result.state == "failed"
        except BaseException as error:  # noqa: BLE001  every error becomes the result, and its traceback is logged
            traceback.print_exc()
            may_be_of_ray = not isinstance(error, ClusterTrainError | RunStopped)
            if isinstance(error, RayNotUp):
                result = run.cluster.result_of_late_ray(run.job, run.attempt, str(error))
            else:
                result = of_error(run.attempt, error)
        if may_be_of_ray and run.cluster.is_gone():
            return EXIT_RAY_ENDED  # the launcher determines how Ray ended
        return write_result(run.attempt, result).exit_code


def _fit(run: _Run) -> Result:
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
    from clustertrain.driver.starts import result_of_starts

    return result_of_starts(run.ref, run.job, run.job_yaml, run.cluster, run.world_sizes)


def _set_environment(job: Job) -> None:
    os.environ.update(RAY_ENVIRONMENT)
    os.environ.update(driver_environment(job))
    if job.resources.gpus_per_worker:
        os.environ.setdefault(NCCL_HANG_DETECTOR, "1")


def _connect(run: _Run, imports: Future[None]) -> None:
    if run.cluster.is_this_machine and run.job.resources.gpus_per_worker:
        imports.result()  # of torch
        check_gpus(run.world_sizes[-1], run.job.resources.gpus_per_worker)
    started = time.monotonic()
    # A connection that reports its own failure at the deadline has the better message.
    with ending_after(run.cluster.deadline.seconds + _MARGIN_S, run.end_without_answer):
        address = run.cluster.connect(run.attempt, run.world_sizes)
    seconds = time.monotonic() - started
    EventLog(run.attempt.events).write("ray_started", seconds=seconds, address=address)


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
