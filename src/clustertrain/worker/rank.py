"""The interface of the training loop on one rank of a worker group: requests, checkpoints, logs, phases."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clustertrain.checkpoints.manifest import CheckpointName, read_manifest
from clustertrain.checkpoints.save import Saver, bytes_of, load
from clustertrain.checkpoints.write import Writer
from clustertrain.errors import StorageError
from clustertrain.job.identity import hyperparameters, job_hash
from clustertrain.job.model import Job
from clustertrain.node.limits import read_limits
from clustertrain.node.version import __version__
from clustertrain.run_files.best import retention_of
from clustertrain.run_files.save_interval import mtbf_s
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.events import new_records
from clustertrain.run_files.streams.step_counter import Reached
from clustertrain.run_files.streams.streams import Tail
from clustertrain.training.ranks.host import Requests, SaveProgress
from clustertrain.training.saving import wait_until_written
from clustertrain.training.values import State
from clustertrain.worker.auto_save import AutoSave
from clustertrain.worker.loggers.curve import LoggedCurve
from clustertrain.worker.loggers.logger import Subject
from clustertrain.worker.machine.gc_tuning import collect_as_usual
from clustertrain.worker.memory_shelf import lacking_room, memory_saver, memory_shelf, node_group
from clustertrain.worker.restart_plan import RestartPlan
from clustertrain.worker.setup import worker_state
from clustertrain.worker.step_limit import UPPER_S, StepLimit
from clustertrain.worker.stop_requests import RequestPoller, wait_for_all_s
from clustertrain.worker.strike import FaultInjector
from clustertrain.worker.watchdog import Grace, WatchdogThread

if TYPE_CHECKING:
    from clustertrain.worker.loggers.ray_gauges import RayGauges

_MEMORY_END_S = 60.0  # for a last checkpoint in memory, whose threads of all ranks wait for each other


class WorkerRun:
    """Implements training's Host, for functions and scripts as well."""

    def __init__(self, plan: RestartPlan, job: Job, rank: int, world_size: int) -> None:
        self.plan, self.rank, self.world_size = plan, rank, world_size
        self.attempt = plan.ref.open()
        restart = self.attempt.restart(plan.restart)
        self.step = 0
        self.has_saved = False
        self.last_metrics: dict[str, float] = {}
        self.saves_in_background = job.checkpoint.async_
        # The ranks of a loop agree on the step to stop at; each process of a script gets its own signal, and
        # each rank of a function ends by itself if it is not done within the grace time.
        resizable = restart if len(job.world_sizes) > 1 and not job.is_script else None
        has_poller = rank == 0 or job.task is None
        self._requests = RequestPoller(self.attempt, resizable, plan.claimed_s) if has_poller else None
        self._metrics = EventLog(restart.metrics) if rank == 0 else None
        self._logged = Tail(self.attempt.run.on_this_node, restart.metrics_key)  # by a script
        self._curve = self._make_curve(job) if rank == 0 else None
        self._gauges = self._make_gauges() if rank == 0 else None
        self._reached = Reached(restart.reached) if rank == 0 else None
        self._auto_save = self._make_auto_save(job) if rank == 0 and job.checkpoint.every == "auto" else None
        self._saver = self._make_saver(job)
        self._memory_saver: Saver | None = None
        self.strike = FaultInjector(restart, rank, job.drill, self._note)
        watch = job.failures.watchdog
        limits_s = {
            "first_step": watch.first_step_s,
            "step": watch.step_s or UPPER_S,
            "usual_step": watch.step_s or UPPER_S,
            "evaluation": watch.evaluation_s,
            "save": watch.save_s,
        }
        self._watchdog = WatchdogThread(
            limits_s,
            worker_state.note_hang,
            worker_state.stacks,
            steps=StepLimit(plan.alarms) if watch.step_s is None else None,
            grace=Grace(job.failures.grace_s, self._requests.is_stopping)
            if job.function is not None and self._requests is not None
            else None,
        )

    def _make_curve(self, job: Job) -> LoggedCurve:
        resumed = CheckpointName.parse(self.plan.checkpoint or "")
        first_step = resumed.step + 1 if resumed is not None else 1
        return LoggedCurve(job.loggers, Subject(self.attempt, first_step, hyperparameters(job)), self.note)

    def _make_gauges(self) -> RayGauges | None:
        if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
            return None
        from clustertrain.worker.loggers.ray_gauges import RayGauges

        return RayGauges(self.attempt.run)

    def _make_auto_save(self, job: Job) -> AutoSave:
        nodes = math.ceil(self.world_size / int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        return AutoSave(mtbf_s(job.failures, nodes))

    def _make_saver(self, job: Job) -> Saver | None:
        """Make the saver of rank 0; with FSDP of each rank, because each has a part of the state."""
        shelf = self.attempt.run.checkpoints
        self._is_divided = job.train is not None and job.train.strategy == "fsdp" and self.world_size > 1
        saver, group = Saver, None
        if self._is_divided:  # the imports take a second of processor time
            from clustertrain.checkpoints.group import PartWriter, SaveGroup
            from clustertrain.checkpoints.shards import ShardSaver

            saver, group = ShardSaver, SaveGroup(range(self.world_size))
        if self.rank != 0:
            if group is None:
                return None
            return saver(
                PartWriter(shelf, self.plan.ref.attempt, self.plan.restart, group),
                background=job.checkpoint.async_,
                on_saved=lambda **fields: None,  # rank 0 reports the whole
                on_failed=lambda text: None,
            )
        writer = Writer(
            shelf=shelf,
            attempt=self.plan.ref.attempt,
            restart=self.plan.restart,
            job_sha256=job_hash(job),
            versions=versions(),
            retention=retention_of(job),
            still_newest=self._still_newest,
            others=group,
        )
        for name in writer.collected:
            self._note("warning", text=f"removed {name}: an unfinished checkpoint of an earlier start")
        return saver(
            writer,
            background=job.checkpoint.async_,
            on_saved=self._saved,
            on_failed=lambda text: self._note("warning", text=text),
        )

    def _saved(self, **fields: Any) -> None:
        if self._auto_save:
            self._auto_save.saved(fields["blocking_s"], fields["write_s"])
        self._note("checkpoint", **fields)

    def __enter__(self) -> WorkerRun:
        self._watchdog.__enter__()
        if self._requests:
            self._requests.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._watchdog.__exit__(*exc)
        if self._requests:
            self._requests.__exit__(*exc)
        if self._curve:
            self._curve.close(failed=exc[0] is not None)
        if self._reached:
            self._reached.close()

    def _note(self, kind: str, **fields: Any) -> None:
        EventLog(self.attempt.node_events(socket.gethostname())).write(kind, **fields)

    def note(self, kind: str, text: str) -> None:
        """Write an event that is a line of text: a note or a warning."""
        self._note(kind, text=text)

    def _still_newest(self) -> bool:
        """Return whether no later attempt and no later restart was claimed.

        It reads the next claims by name, because a listing of an S3 server may be old.
        """
        self.strike.committing()
        next_attempt = self.attempt.run.attempt(self.attempt.n + 1)
        next_restart = self.attempt.restart(self.plan.restart + 1)
        return not next_attempt.claim.exists() and not next_restart.claim.exists()

    # -- what the loop calls ---------------------------------------------------------------------

    def requests(self) -> Requests:
        """Return the requests, on rank 0 and on each rank of a script.

        A request for a save is returned once.
        """
        if self._saver:
            self._saver.check()
        requests = self._requests.take() if self._requests else Requests()
        return requests._replace(save_timer=self._auto_save is not None and self._auto_save.is_due())

    def stop_exists(self) -> bool:
        """Return whether a stop was requested, from the storage itself: the poller may be behind it."""
        with suppress(StorageError):
            return self.attempt.run.with_patience(0).attempt(self.attempt.n).stop.read() is not None
        return False

    def stop_in_s(self) -> float:
        """Return the seconds until the signal of a request to stop, so that all scripts get it together."""
        return wait_for_all_s(self.attempt)

    def restore(self) -> State | None:
        if self.plan.checkpoint is None:
            return None
        return load(self._restored_folder())

    def fill(self, tensors: dict[str, torch.Tensor]) -> None:
        from clustertrain.checkpoints.shards import fill, fill_own

        if self.plan.in_memory:
            fill_own(self._restored_folder(), tensors)
            return
        name = self.plan.checkpoint or ""
        fill(self._restored_folder(), tensors, read_manifest(self.attempt.run.checkpoints, name).files)

    def _restored_folder(self) -> Path:
        """Return the folder of the checkpoint to resume from, on this node."""
        shelf, name = self.attempt.run.checkpoints, self.plan.checkpoint or ""
        if self.plan.in_memory and (of_node := memory_shelf(self.attempt.n)) is not None:
            shelf = of_node
        return shelf.store.local_folder(f"{shelf.key}/{name}") or self.attempt.checkpoint_copy / name

    def reserve(self, state: State) -> None:
        if self._saver:
            self._saver.reserve(state)

    def save(self, state: State, progress: SaveProgress) -> None:
        self.has_saved = True
        self.strike.saving(progress.step)
        if self._requests and self._requests.is_resize and progress.reason == "stop":
            progress = replace(progress, reason="resize")
        if self._saver:
            self._saver.save(state, progress)
        if self._auto_save:
            self._auto_save.started()

    def wait_for_write(self, timeout_s: float) -> int | None:
        return self._saver.wait(timeout_s) if self._saver else None

    def is_writing(self) -> bool:
        return any(saver.wait(0) is not None for saver in (self._saver, self._memory_saver) if saver)

    def memory_lacks(self, state: State) -> str:
        place = worker_state.place
        group = node_group(place) if self._is_divided else None
        if (shelf := memory_shelf(self.attempt.n)) is None:
            return f"{socket.gethostname()} has no private folder in /dev/shm"
        self._memory_saver = memory_saver(shelf, self.plan, place, group, partial(self.note, "warning"))
        ranks = place.local_world_size if self._is_divided else 1
        return lacking_room(ranks * bytes_of(state), read_limits()) if self._memory_saver else ""

    def save_in_memory(self, state: State, progress: SaveProgress) -> None:
        if self._memory_saver:
            with suppress(StorageError):  # a note has said why; the storage has checkpoints
                self._memory_saver.save(state, progress)

    def log(self, record: dict[str, Any]) -> None:
        if record.get("kind") == "samples":
            self._note("samples", rank=self.rank, **{k: v for k, v in record.items() if k != "kind"})
            return
        self._take(record)
        if self._metrics:
            self._metrics.write(**record)

    def follow(self) -> None:
        """Take what a script has logged since the last call, on rank 0.

        Its own process has written it, so that nothing is lost with this one.
        """
        if self.rank != 0:
            return
        for record in new_records(self._logged):
            if self._curve and not self.last_metrics:
                self._curve.begin(record["step"])
            self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        position = ("step", "epoch", "time")
        numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and k not in position}
        self.step = int(record.get("step", self.step))
        if record.get("kind") not in ("train", "eval"):
            return
        self.last_metrics = {k: float(v) for k, v in numbers.items()}
        if self._curve:
            self._curve.add(record["kind"], self.step, numbers)
        if self._gauges and record["kind"] == "train":
            self._gauges.take(record)

    def images(self, step: int, images: Mapping[str, torch.Tensor]) -> None:
        if self._curve:
            self._curve.add_images(step, images)

    def phase(self, name: str, step: int) -> None:
        self._watchdog.beat(name)
        self.step = max(self.step, step)
        if self._reached:
            self._reached.set(step)
        if name in ("step", "usual_step"):
            collect_as_usual()
            self.strike.step_done(step)

    def profile(self) -> tuple[Path, str]:
        key = self.attempt.restart(self.plan.restart).profile_key(self.rank)
        return self.attempt.run.local_path(key), self.attempt.run.store.uri(key)

    def finish(self) -> None:
        if self._saver:
            wait_until_written(self, self.step)
            self._saver.finish()
        if self._memory_saver:
            self._memory_saver.wait(_MEMORY_END_S)


def versions() -> dict[str, str]:
    return {"clustertrain": __version__, "torch": torch.__version__, "ray": metadata.version("ray")}
