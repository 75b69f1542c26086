"""What runs in each Ray Train worker, for the three ways in.

`prepare` and `stage_data` run before the process group exists; `train` is the function that TorchTrainer
calls. All of them run in the worker's process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clustertrain import session
from clustertrain.checkpoint import bring
from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.gpus import check_gpus
from clustertrain.guarded import REQUESTS_TO_END
from clustertrain.job import Job
from clustertrain.job_places import DataEntry
from clustertrain.node_probe import read_nonces, remove_nonce, write_nonce
from clustertrain.observe.events import EventLog
from clustertrain.requests import Requests
from clustertrain.restart_plan import Plan, start_line
from clustertrain.run_dir import Attempt
from clustertrain.script import run_script, torchrun_environment
from clustertrain.staging.stage import stage
from clustertrain.staging.staged import data_folder
from clustertrain.training.distributed import Place
from clustertrain.training.loop import train as train_loop
from clustertrain.training.settings import TrainSettings
from clustertrain.user_code import check_function, check_task, code_folder, make_task
from clustertrain.watchdog import Watchdog
from clustertrain.worker_run import WorkerRun


@dataclass
class _Process:
    """What this worker process was told before training: a worker process serves one start of one group."""

    plan: Plan | None = None
    data: dict[str, Path] = field(default_factory=dict)


_process = _Process()


def prepare(plan: Plan) -> None:
    """Remember the plan and send this process's output to a file of its rank."""
    import ray.train

    _process.plan = plan
    attempt = plan.ref.open()
    rank = ray.train.get_context().get_world_rank()
    log = attempt.rank_log(socket.gethostname(), rank)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    print(start_line(plan.restart), flush=True)
    _hear_no_term()
    faulthandler.enable(file=sys.stderr)  # a fatal signal leaves its name and the stacks in the rank's log
    code = code_folder(plan.job)
    if code not in sys.path:
        sys.path.insert(0, code)
    os.chdir(code)
    os.environ.update(plan.job.env)
    if plan.job.resources.gpus_per_worker:
        check_gpus(1, plan.job.resources.gpus_per_worker)


def _hear_no_term() -> None:
    """A stop is a request in a file. A scheduler's TERM reaches every process of a step, and would end this
    one before the last save; the processes that a data loader forks are ended by it, as ever."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS_TO_END)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def stage_data(per: str) -> None:
    """Bring the data sets of that kind here; runs on one rank per cluster or per node."""
    plan = _planned()
    attempt = plan.ref.open()
    events = EventLog(attempt.node_events(socket.gethostname()))
    limit_s = {"stage": plan.job.failures.watchdog.stage_s}
    with (
        Watchdog(limit_s, lambda text: events.write("watchdog", text=text, rank=_rank())) as watchdog,
        Requests(attempt) as requests,
    ):
        seen: set[Any] = set()

        def on_event(event: dict[str, Any]) -> None:
            events.write(**_as_event(event))
            progress = (event["name"], event["phase"], event.get("bytes"))
            if progress not in seen:  # an event that says the same again is no progress
                seen.clear()
                seen.add(progress)
                watchdog.beat("stage")

        watchdog.beat("stage")
        for name, entry in plan.job.data.items():
            if _kept_per(attempt, entry) == per:
                stage(
                    name,
                    plan.job.data_location(name),
                    sha256=entry.sha256,
                    extract=entry.extract,
                    into=data_folder(attempt.run.data_path, per),
                    on_event=on_event,
                    should_stop=lambda: requests.take()[0],
                )


def _kept_per(attempt: Attempt, entry: DataEntry) -> str:
    """ "cluster" or "node": with storage on S3 there is no folder that nodes share, so each keeps its own."""
    return entry.per if attempt.run.data_path is not None else "node"


def find_data() -> None:
    """Look up what was staged; runs on every rank afterwards, and finds every marker in place."""
    plan = _planned()
    attempt = plan.ref.open()
    for name, entry in plan.job.data.items():
        _process.data[name] = stage(
            name,
            plan.job.data_location(name),
            sha256=entry.sha256,
            extract=entry.extract,
            into=data_folder(attempt.run.data_path, entry.per),
        )


def probe_storage(step: str, nonces: Mapping[int, str]) -> None:
    """One of three steps of the storage's probe; runs on one rank per node, all nodes at once."""
    import ray.train

    plan, node_rank = _planned(), ray.train.get_context().get_node_rank()
    attempt = plan.ref.open()
    if step == "write":
        write_nonce(attempt, plan.restart, node_rank, nonces[node_rank])
    elif step == "read":
        read_nonces(attempt, plan.restart, nonces)
    else:
        remove_nonce(attempt, plan.restart, node_rank)


def bring_checkpoint() -> None:
    """Copy the checkpoint to resume from to this node, where storage is S3; runs on one rank per node."""
    plan = _planned()
    attempt = plan.ref.open()
    shelf = attempt.run.checkpoints
    if plan.checkpoint is not None and shelf.store.local_folder(shelf.key) is None:
        bring(shelf, plan.checkpoint, attempt.brought_path)


def _rank() -> int:
    import ray.train

    return int(ray.train.get_context().get_world_rank())


def _as_event(event: dict[str, Any]) -> dict[str, Any]:
    return {"kind": event["event"], **{key: value for key, value in event.items() if key != "event"}}


def _planned() -> Plan:
    if _process.plan is None:
        raise ClusterTrainError(
            "The worker was asked to train before it was given a plan: a fault of clustertrain."
        )
    return _process.plan


def train(config: dict[str, Any]) -> None:
    """The function of TorchTrainer: one of the three ways in, on this rank."""
    import ray.train

    plan, context = _planned(), ray.train.get_context()
    job = plan.job
    started = time.time()
    way = _run_script if job.script else _run_function if job.function else _run_task
    with WorkerRun(plan, job, context.get_world_rank(), context.get_world_size()) as run:
        outcome = way(run, job, context)
    if run.rank == 0:
        key = f"{run.attempt.restart_key(plan.restart)}/outcome.json"
        run.attempt.run.write_json(key, {**outcome, "train_started": started, "train_ended": time.time()})


def _place(context: Any) -> Place:
    import ray.train.torch

    return Place(
        rank=context.get_world_rank(),
        local_rank=context.get_local_rank(),
        world_size=context.get_world_size(),
        device=ray.train.torch.get_device(),
    )


def _run_task(run: WorkerRun, job: Job, context: Any) -> dict[str, Any]:
    cls = check_task(job.task or "")
    task = make_task(cls, job)
    result = train_loop(task, settings_of(job), _place(context), run, dict(_process.data))
    return {
        "finished": result.finished,
        "step": result.step,
        "epoch": result.epoch,
        "metrics": dict(result.metrics),
    }


def settings_of(job: Job) -> TrainSettings:
    """The loop's settings, from the job's `train:` and `checkpoint:`."""
    train = job.train
    if train is None:
        raise JobError("train: is missing; a task needs it.")
    return TrainSettings(
        epochs=train.epochs,
        steps=train.steps,
        batch_size=train.batch_size,
        global_batch_size=train.global_batch_size,
        seed=train.seed,
        precision=train.precision,
        accumulate=train.accumulate,
        clip_norm=train.clip_norm,
        compile=train.compile,
        sync_batchnorm=train.sync_batchnorm,
        find_unused_parameters=train.find_unused_parameters,
        lr_scaling=train.lr.scaling,
        lr_base_batch_size=train.lr.base_batch_size,
        warmup_steps=train.lr.warmup_steps,
        log_every=train.log_every,
        eval_every_steps=train.eval_every.steps,
        eval_every_epochs=train.eval_every.epochs,
        loader_workers=train.loader_workers,
        save_every_steps=job.checkpoint.every.steps,
        save_every_epochs=job.checkpoint.every.epochs,
        save_every_minutes=job.checkpoint.every.minutes,
    )


def _run_function(run: WorkerRun, job: Job, context: Any) -> dict[str, Any]:
    function = check_function(job.function or "")
    args = dict(job.args) if isinstance(job.args, dict) else {}
    session.begin(
        session.Session(
            run=run,
            place=_place(context),
            data=dict(_process.data),
            args=args,
            save_every_steps=job.checkpoint.every.steps,
            save_every_minutes=job.checkpoint.every.minutes,
        )
    )
    run.phase("first_step", 0)
    function(args)
    run.finish()
    return {"finished": not run.stopped_by_request, "step": run.step, "metrics": run.last_metrics}


def _run_script(run: WorkerRun, job: Job, context: Any) -> dict[str, Any]:
    environment = torchrun_environment(
        rank=run.rank,
        local_rank=context.get_local_rank(),
        world_size=run.world_size,
        local_world_size=context.get_local_world_size(),
        group_rank=context.get_node_rank(),
        restart=run.plan.restart,
        retries=job.failures.retries,
        run_id=f"{run.plan.ref.name}-{run.plan.ref.attempt}",
    )
    shelf = run.attempt.run.checkpoints
    if (folder := shelf.store.local_folder(shelf.key)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
    environment |= {
        "CLUSTERTRAIN_CHECKPOINT_DIR": str(shelf),
        "CLUSTERTRAIN_ATTEMPT": str(run.plan.ref.attempt),
        "CLUSTERTRAIN_RESTART": str(run.plan.restart),
        **{f"CLUSTERTRAIN_DATA_{name.upper()}": str(path) for name, path in _process.data.items()},
    }
    code = Path(code_folder(job))
    args = [str(arg) for arg in job.args] if not isinstance(job.args, dict) else []
    finished = run_script(
        code / (job.script or ""),
        args,
        rank=run.rank,
        environment=environment,
        cwd=code,
        stop_requested=lambda: run.requests()[0],
        grace_s=job.failures.grace_s,
    )
    return {"finished": finished, "step": None, "metrics": {}}
