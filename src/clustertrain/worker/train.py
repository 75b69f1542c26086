"""The function that each rank calls once its process group exists, for the three entry points.

In: the plan and the job that driver/group/start.py has sent. Out: the outcome of the rank; a `Task` is
trained by training/loop.py. TorchTrainer calls `train_loop_per_worker`; without Ray
worker/forked_rank.py does.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path

from clustertrain import session
from clustertrain.errors import ClusterTrainError, JobError, RunStopped
from clustertrain.job.identity import job_hash
from clustertrain.job.model import Job
from clustertrain.node import variables
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Outcome
from clustertrain.run_files.streams.rank_log import marks_of_output
from clustertrain.run_files.working_folder import files_beside_code, lost_files
from clustertrain.training.loop import TrainResult, train
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.host import Host
from clustertrain.training.ranks.rng import seed_all
from clustertrain.training.settings import Train, TrainSettings
from clustertrain.training.step.kernels import use_fast_kernels
from clustertrain.training.task_errors import RaisedByTask
from clustertrain.worker.code.user_code import check_function, check_task, code_folders, make_task, works_in
from clustertrain.worker.code.user_error import UserCodeFailed, report_of
from clustertrain.worker.early_return import EarlyReturn, frames_of_next_call, own_line
from clustertrain.worker.place import Place
from clustertrain.worker.rank import WorkerRun
from clustertrain.worker.restart_plan import RestartPlan
from clustertrain.worker.scripts.script import ScriptFailed, run_script, torchrun_environment
from clustertrain.worker.scripts.script_command import (
    fill_environment,
    program_of,
    python_variables,
    script_arguments,
    worker_variables,
)
from clustertrain.worker.setup import worker_state

LOADERS_WITH_GPUS = 4  # the default of train.loader_workers


def train_loop_per_worker() -> None:
    """Train on this rank; with Ray, TorchTrainer calls this function.

    Raises:
        UserCodeFailed: the user's code raised an exception; its traceback is in the rank's log.
    """
    plan = worker_state.plan
    try:
        _train(plan, plan.job)
    except BaseException as caught:
        error, refusal = caught, ""
        if isinstance(caught, RaisedByTask) and caught.__cause__ is not None:
            error, refusal = caught.__cause__, str(caught)
        if not isinstance(error, ScriptFailed):  # what a script printed is in the log
            traceback.print_exception(error)
            sys.stderr.flush()
        if isinstance(error, ClusterTrainError | RunStopped):
            raise
        raise UserCodeFailed(report_of(error, str(code_folders(plan.job)[0])), refusal) from None


def _train(plan: RestartPlan, job: Job) -> None:
    place, started = worker_state.place, time.time()
    entry_point = _run_script if job.is_script else _run_function if job.function else _run_task
    with WorkerRun(plan, job, place.rank, place.world_size) as run:
        fill_environment(job, _variables(run))
        with _naming_lost_files(run, job):
            outcome = entry_point(run, job, place)
    if run.rank == 0:
        outcome = replace(outcome, train_started=started, train_ended=time.time())
        run.attempt.restart(plan.restart).outcome.write(outcome)


@contextmanager
def _naming_lost_files(run: WorkerRun, job: Job) -> Iterator[None]:
    """Write a warning with the files that were written to the node's copy of the code: it is removed."""
    is_copy = bool(os.environ.get(variables.CODE)) and worker_state.place.local_rank == 0
    folders = [str(folder) for folder in code_folders(job)] if is_copy else []
    before = files_beside_code(folders)
    try:
        yield
    finally:
        if lost := lost_files(before, files_beside_code(folders)):
            run.note(
                "warning",
                f"these files are lost with this node's copy of the code: {lost}\n{_remedy(run, job)}",
            )


def _remedy(run: WorkerRun, job: Job) -> str:
    if works_in(run.attempt.run, job) != code_folders(job)[0]:
        return "Write to a path that begins in the working directory, not in the folder of the source file."
    checkpoints = f"${variables.CHECKPOINT_DIR} ({run.attempt.run.checkpoints})"
    save = f"Write them to {checkpoints}" if job.is_script else "Save them with session.save"
    return f"{save}, or set `storage` to a folder that the nodes share."


def _rank_info(place: Place) -> RankInfo:
    return RankInfo(place.rank, place.local_rank, place.world_size, place.device)


@marks_of_output()
def _run_task(run: WorkerRun, job: Job, place: Place) -> Outcome:
    settings = settings_of(job)
    settings = replace(settings, sanity=settings.sanity and not run.plan.is_tried)
    result = train_task(job, settings, _rank_info(place), run, worker_state.data)
    return Outcome(**asdict(result))


def train_task(
    job: Job, settings: TrainSettings, rank_info: RankInfo, host: Host, data: Mapping[str, Path]
) -> TrainResult:
    """Create the task of a job and train it."""
    use_fast_kernels(settings.matmul, settings.cudnn, rank_info.device)
    task = make_task(check_task(job.task or ""), job)
    return train(task, settings, rank_info, host, dict(data))


def settings_of(job: Job) -> TrainSettings:
    """Return the loop's settings, from the job's `train:`, `checkpoint:` and `resources:`."""
    if job.train is None:
        raise JobError(
            "The section train is missing.\nA task needs it, for example train: {epochs: 3, batch_size: 32}."
        )
    keep_best = job.checkpoint.keep_best
    keys = {each.name: getattr(job.train, each.name) for each in fields(Train)}
    if job.train.loader_workers is None:
        keys["loader_workers"] = LOADERS_WITH_GPUS if job.resources.gpus_per_worker else 0
    return TrainSettings(
        **keys,
        save_every=job.checkpoint.periods,
        memory_every=None if job.checkpoint.memory_every == "auto" else job.checkpoint.memory_every,
        keep_best=keep_best.metric if keep_best else None,
        job_sha256=job_hash(job),
        records_samples=job.drill.fault is not None,
        sanity=job.train.sanity,
    )


@marks_of_output()
def _run_function(run: WorkerRun, job: Job, place: Place) -> Outcome:
    seed_all(run.plan.function_seed, rank=0)
    name, code = (job.function or "").partition(":")[2], str(code_folders(job)[0])
    folder, restart = checkpoint_folder(run.attempt.run), run.attempt.restart(run.plan.restart)
    with EarlyReturn(restart, run.rank, name, code) as others:
        rank_session, line = call_function(job, _rank_info(place), run, worker_state.data, folder)
        others.has_returned(line)
        rank_session.end()
        run.finish()
    has_checkpoint = run.has_saved or rank_session.stopped or run.plan.checkpoint is not None
    if run.rank == 0 and job.has_own_checkpoint_section and not has_checkpoint:
        run.note("warning", f"{job.function} ended without session.save: the run has no checkpoint")
    return Outcome(not rank_session.stopped, run.step, metrics=run.last_metrics)


def call_function(
    job: Job, rank_info: RankInfo, host: Host, data: Mapping[str, Path], checkpoint_dir: Path | str
) -> tuple[session.Session, str]:
    """Call the function of a job with its args.

    Return the session in which it ran, and the line of the user's code from which it returned.
    """
    function = check_function(job.function or "")
    args = dict(job.args) if isinstance(job.args, dict) else {}
    rank_session = session.Session(
        run=host,
        rank_info=rank_info,
        data=dict(data),
        args=args,
        save_every=job.checkpoint.periods,
        keep_best=job.checkpoint.keep_best.metric if job.checkpoint.keep_best else None,
        checkpoint_dir=checkpoint_dir,
    )
    session.start_session(rank_session)
    host.phase("first_step", 0)
    frames = frames_of_next_call()
    try:
        function(args)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    return rank_session, own_line(frames[0], str(code_folders(job)[0])) if frames else ""


@marks_of_output()
def _run_script(run: WorkerRun, job: Job, place: Place) -> Outcome:
    environment = torchrun_environment(
        place,
        restart=run.plan.restart,
        retries=job.failures.most_restarts,
        run_id=f"{run.plan.ref.name}-{run.plan.ref.attempt}",
    )
    checkpoint_folder(run.attempt.run)
    values = _variables(run)
    logs = {variables.METRICS: str(run.attempt.restart(run.plan.restart).metrics)} if run.rank == 0 else {}
    folders = code_folders(job)
    finished = run_script(
        program_of(job, folders, script_arguments(job, values, resumes=run.plan.resumes_script)),
        run,
        environment=environment | values | logs | python_variables(job, folders),
        cwd=works_in(run.attempt.run, job),
        code_folder=folders[0],
        grace_s=job.failures.grace_s,
    )
    return Outcome(finished, run.step or None, metrics=run.last_metrics)


def checkpoint_folder(run: RunDir) -> Path | str:
    """Return the folder for the checkpoints of a script or function, or its URI if the storage is S3.

    A folder that does not exist is made.
    """
    shelf = run.checkpoints
    folder = shelf.store.local_folder(shelf.key)
    if folder is None:
        return str(shelf)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _variables(run: WorkerRun) -> dict[str, str]:
    return worker_variables(
        worker_state.data,
        attempt=run.plan.ref.attempt,
        restart=run.plan.restart,
        checkpoints=str(run.attempt.run.checkpoints),
    )
