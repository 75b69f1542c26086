"""The launcher's side of the training loop in a worker: requests, checkpoints, logs, phases."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import torch

from clustertrain import __version__
from clustertrain.checkpoint import Retention, Writer
from clustertrain.job import Job
from clustertrain.jobfile import job_hash
from clustertrain.observe.board import Board
from clustertrain.observe.events import EventLog
from clustertrain.reached import Reached
from clustertrain.restart_plan import Plan
from clustertrain.saving import Saver, load
from clustertrain.watchdog import Watchdog

_POLL_S = 0.2  # how often rank 0 looks for a stop or save request


class WorkerRun:
    """Implements training.loop.Run, and serves the other two ways in as well."""

    def __init__(self, plan: Plan, job: Job, rank: int, world_size: int) -> None:
        self.plan, self.rank, self.world_size = plan, rank, world_size
        self.attempt = plan.ref.open()
        self.step = 0
        self.last_metrics: dict[str, float] = {}
        self.stopped_by_request = False
        self._polled = (0.0, False, False)
        self._save_seen: tuple[int, int] | None = self._save_request()
        self._metrics = EventLog(self.attempt.metrics(plan.restart)) if rank == 0 else None
        self._board = Board(self.attempt.tensorboard) if rank == 0 else None
        self._reached = Reached(self.attempt.reached(plan.restart)) if rank == 0 else None
        self._saver = self._make_saver(job) if rank == 0 else None
        watch = job.failures.watchdog
        limits_s = {
            "first_step": watch.first_step_s,
            "step": watch.step_s,
            "evaluation": watch.evaluation_s,
            "save": watch.save_s,
        }
        self._watchdog = Watchdog(limits_s, lambda text: self._note("watchdog", text=text, rank=rank))

    def _make_saver(self, job: Job) -> Saver:
        best = job.checkpoint.keep_best
        writer = Writer(
            checkpoints=self.attempt.run.store_path(self.attempt.run.checkpoints_key),
            attempt=self.plan.ref.attempt,
            restart=self.plan.restart,
            job_sha256=job_hash(job),
            versions=versions(),
            retention=Retention(
                keep_last=job.checkpoint.keep_last,
                best_metric=best.metric if best else None,
                best_mode=best.mode if best else "max",
            ),
            still_newest=self._still_newest,
        )
        for name in writer.collected:
            self._note("warning", text=f"removed {name}: an unfinished checkpoint of an earlier start")
        return Saver(
            writer,
            background=job.checkpoint.async_,
            on_saved=lambda **fields: self._note("checkpoint", **fields),
            on_failed=lambda text: self._note("warning", text=text),
        )

    def __enter__(self) -> WorkerRun:
        self._watchdog.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._watchdog.__exit__(*exc)
        if self._board:
            self._board.close()
        if self._reached:
            self._reached.close()

    def _note(self, kind: str, **fields: Any) -> None:
        EventLog(self.attempt.node_events(socket.gethostname())).write(kind, **fields)

    def _still_newest(self) -> bool:
        newest = self.attempt.run.newest_attempt()
        return (
            newest is not None
            and newest.n == self.plan.ref.attempt
            and max(self.attempt.restarts()) == self.plan.restart
        )

    # -- what the loop calls ---------------------------------------------------------------------

    def requests(self) -> tuple[bool, bool]:
        """(stop, save); looks at the storage at most every 0.2 s."""
        at, stop, _ = self._polled
        now = time.monotonic()
        if now - at < _POLL_S:
            return stop, False
        if self._saver:
            self._saver.check()
        stop = (self.attempt.path / "stop").exists()
        request = self._save_request()
        save, self._save_seen = request != self._save_seen and request is not None, request
        self._polled = (now, stop, save)
        return stop, save

    def _save_request(self) -> tuple[int, int] | None:
        try:
            found = (self.attempt.path / "save").stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino

    def restore(self) -> dict[str, Any] | None:
        return load(Path(self.plan.checkpoint)) if self.plan.checkpoint else None

    def save(self, state: dict[str, Any], progress: dict[str, Any]) -> None:
        if self._saver:
            self._saver.save(state, progress)

    def log(self, record: dict[str, Any]) -> None:
        numbers = {
            k: v for k, v in record.items() if isinstance(v, int | float) and k not in ("step", "epoch")
        }
        self.step = int(record.get("step", self.step))
        if record.get("kind") in ("train", "eval"):
            self.last_metrics = {k: float(v) for k, v in numbers.items()}
        if self._metrics:
            self._metrics.write(**record)
        if self._board and record.get("kind") in ("train", "eval"):
            self._board.add(record["kind"], self.step, numbers)

    def phase(self, name: str, step: int) -> None:
        self._watchdog.beat(name)
        self.step = max(self.step, step)
        if self._reached:
            self._reached.set(step)

    def finish(self) -> None:
        if self._saver:
            self._saver.finish()


def versions() -> dict[str, str]:
    import ray

    return {"clustertrain": __version__, "torch": torch.__version__, "ray": ray.__version__}
