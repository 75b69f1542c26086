"""The steps in each worker before the process group exists: output, signals, data, checkpoint."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from clustertrain.checkpoints.read import fetch_checkpoint
from clustertrain.job.data_and_storage import DataEntry
from clustertrain.job.model import Job
from clustertrain.job.references import without_references
from clustertrain.job.start_environment import without_gpus
from clustertrain.node import variables
from clustertrain.node.network import interface_variables
from clustertrain.node.signals import REQUESTS_TO_END
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.rank_log import start_line
from clustertrain.staging.entry import data_folder
from clustertrain.worker.code.user_code import enter_code, works_in
from clustertrain.worker.machine.gc_tuning import collect_rarely
from clustertrain.worker.machine.gpu_affinity import place_worker
from clustertrain.worker.machine.gpus import check_gpus
from clustertrain.worker.machine.heap import keep_freed_memory
from clustertrain.worker.machine.local_data import staged
from clustertrain.worker.place import Place
from clustertrain.worker.restart_plan import RestartPlan
from clustertrain.worker.stacks import Stacks
from clustertrain.worker.stop_requests import RequestPoller
from clustertrain.worker.watchdog import WatchdogThread


class WorkerState:
    """The plan, the place and the data paths of this process.

    A worker process serves one start of one worker group.
    """

    plan: RestartPlan  # from set_up_process on
    place: Place
    stacks: Stacks

    def __init__(self) -> None:
        self.data: dict[str, Path] = {}

    def note_hang(self, text: str) -> None:
        """Write the event of a watchdog of this rank."""
        events = EventLog(self.plan.ref.open().node_events(socket.gethostname()))
        events.write("watchdog", text=text, rank=self.place.rank)


worker_state = WorkerState()


def set_up_process(plan: RestartPlan, place: Place) -> None:
    """Store the plan, redirect the output to the rank's log, and prepare the import of the user's code."""
    collect_rarely()
    worker_state.plan, worker_state.place = plan, place
    attempt, rank = plan.ref.open(), place.rank
    log = attempt.rank_log(socket.gethostname(), rank)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    print(start_line(plan.restart), flush=True)
    worker_state.stacks = Stacks(attempt.restart(plan.restart), rank, place.world_size)
    _ignore_sigterm()
    faulthandler.enable(file=sys.stderr)  # writes the name and the stacks of a fatal signal to the rank's log
    enter_job(plan.job, place, works_in(attempt.run, plan.job))


def enter_job(job: Job, place: Place, cwd: Path | None = None) -> None:
    """Give this process the code, the variables and the devices of a rank. `cwd`: as for `enter_code`."""
    enter_code(job, cwd)
    if folder := os.environ.get(variables.MEMORY_DIR):
        # The semaphores of loader processes stay in /dev/shm when all processes are killed, so their names
        # begin with that of the private folder, whose removal removes them.
        current_process()._config["semprefix"] = f"/{Path(folder).name}"  # type: ignore[attr-defined]
    os.environ.update(without_references(job.env))
    keep_freed_memory()
    for name, value in interface_variables(place.address).items():
        os.environ.setdefault(name, value)
    if job.resources.gpus_per_worker:
        check_gpus(1, job.resources.gpus_per_worker)
        place_worker(job, place.gpus)
    else:
        os.environ.update(without_gpus(job))
        # As `accelerate launch --cpu` does. Without it, Accelerate and Transformers' Trainer see a world of
        # one rank without a GPU: each rank would train on its own.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def _ignore_sigterm() -> None:
    """Ignore SIGTERM: a stop is requested by a file.

    A scheduler sends SIGTERM to every process of a step, which would end this one before the last save. The
    processes that a data loader forks handle SIGTERM as usual.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS_TO_END)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def stage_data(per: str) -> None:
    """Fetch the data sets that are kept per "cluster" or per "node"; runs on one rank per cluster or node."""
    plan = worker_state.plan
    attempt = plan.ref.open()
    events = EventLog(attempt.node_events(socket.gethostname()))
    limit_s = {"stage": plan.job.failures.watchdog.stage_s}
    with (
        WatchdogThread(limit_s, worker_state.note_hang, worker_state.stacks) as watchdog,
        RequestPoller(attempt) as requests,
    ):
        seen: set[Any] = set()

        def on_event(event: dict[str, Any]) -> None:
            fields = {**event}
            events.write(fields.pop("event"), **fields)
            progress = (event["name"], event["phase"], event.get("bytes"))
            if progress not in seen:  # a repeated event is not progress
                seen.clear()
                seen.add(progress)
                watchdog.beat("stage")

        watchdog.beat("stage")
        for name, entry in plan.job.data.items():
            if _kept_per(attempt, entry) == per:
                into = data_folder(attempt.run.data_path, per, plan.job.scratch)
                staged(plan.job, name, into, on_event=on_event, should_stop=lambda: requests.take().stop)


def _kept_per(attempt: Attempt, entry: DataEntry) -> str:
    """Return "cluster" or "node": per which of them the data set is kept.

    With storage on S3 nodes share no folder, so each node keeps its own copy.
    """
    return entry.per if attempt.run.data_path is not None else "node"


def find_data() -> None:
    """Look up the data sets that were staged; runs on every rank after all of them are complete."""
    plan = worker_state.plan
    attempt = plan.ref.open()
    for name, entry in plan.job.data.items():
        into = data_folder(attempt.run.data_path, entry.per, plan.job.scratch)
        worker_state.data[name] = staged(plan.job, name, into)


def copy_checkpoint() -> None:
    """Copy the checkpoint to resume from to this node, if the storage is S3; runs on one rank per node."""
    plan = worker_state.plan
    attempt = plan.ref.open()
    shelf = attempt.run.checkpoints
    if plan.checkpoint and not plan.in_memory and shelf.store.local_folder(shelf.key) is None:
        fetch_checkpoint(shelf, plan.checkpoint, attempt.checkpoint_copy)
