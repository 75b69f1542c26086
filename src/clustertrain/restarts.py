"""What happens between two starts of the worker group; all of it runs in Ray Train's controller.

Before a start: claim the restart (the fence of its checkpoints), choose the checkpoint, stage the data, and
only then make the process group. After a failure: name who died and of what, and decide whether another
start can help. Ray Train counts the restarts; the rule that ends them early is ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train._internal.utils import get_address_and_port
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.torch.config import _TorchBackend
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.failure_handling import FailureDecision

from clustertrain import worker
from clustertrain.checkpoint import CheckpointDamaged, CheckpointName, newest_verified
from clustertrain.errors import ClusterTrainError, RunStopped, StorageError
from clustertrain.observe.events import EventLog
from clustertrain.observe.joined import reached_step
from clustertrain.restart_plan import Plan
from clustertrain.run_dir import Attempt, AttemptRef
from clustertrain.script import ScriptFailed

_LOG_TAIL_BYTES = 20_000


@dataclass
class KitTorchConfig(TorchConfig):  # type: ignore[misc]  # ray ships no types
    """TorchConfig for all three ways in: data is staged before the process group is made."""

    ref: AttemptRef | None = None
    job_yaml: str = ""
    is_script: bool = False

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        return KitBackend

    @property
    def train_func_context(self) -> Any:
        # A script's parent must not touch CUDA: it would hold memory on the child's device.
        return contextlib.nullcontext if self.is_script else super().train_func_context


class KitBackend(_TorchBackend):  # type: ignore[misc]  # ray ships no types
    """Runs in the controller, once before each start of the worker group."""

    def on_start(self, worker_group: Any, backend_config: KitTorchConfig) -> None:
        if backend_config.ref is None:
            raise ClusterTrainError("KitTorchConfig was made without an attempt: a fault of clustertrain.")
        attempt = backend_config.ref.open()
        plan = _claim(attempt, backend_config.ref, backend_config)
        try:
            worker_group.execute(worker.prepare, plan)
            self._stage(worker_group, plan)
            if backend_config.is_script:
                address, port = worker_group.execute_single(0, get_address_and_port)
                worker_group.execute(_set_rendezvous, address, port)
            else:
                super().on_start(worker_group, backend_config)
        except RayActorError as error:  # Ray Train retries only what it takes for a failed start
            EventLog(attempt.events).write("warning", text="a worker died before training began")
            raise WorkerGroupStartupFailedError("A worker died before training began.") from error

    def on_training_start(self, worker_group: Any, backend_config: KitTorchConfig) -> None:
        if not backend_config.is_script:  # a script gets its ranks from script.torchrun_environment
            super().on_training_start(worker_group, backend_config)

    def on_shutdown(self, worker_group: Any, backend_config: KitTorchConfig) -> None:
        """Nothing: the processes end right after; destroying the group would wait 30 s for dead ranks."""

    def _stage(self, worker_group: Any, plan: Plan) -> None:
        if not plan.job.data:
            return
        first_of_node = [w for w in worker_group.get_workers() if w.distributed_context.local_rank == 0]
        ray.get(worker_group.execute_single_async(0, worker.stage_data, "cluster"))
        ray.get([w.execute_async(worker.stage_data, "node") for w in first_of_node])
        worker_group.execute(worker.find_data)


def _set_rendezvous(address: str, port: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)


def _claim(attempt: Attempt, ref: AttemptRef, config: KitTorchConfig) -> Plan:
    """Make the next restart ours and fix what it resumes from.

    Raises:
        RunStopped: a stop was requested before this start.
        StorageError: a newer attempt has taken the run over, or no checkpoint verifies.
    """
    if (stop := attempt.read("stop")) is not None:
        raise RunStopped(f"Stopped before the workers started ({stop.get('cause')}).", checkpointed=False)
    newest = attempt.run.newest_attempt()
    if newest is None or newest.n != attempt.n:
        raise StorageError(
            f"Attempt {attempt.n} is no longer the newest of {attempt.run.path}: another start took over."
        )
    restart = max(attempt.restarts(), default=-1) + 1
    claim = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
    if not attempt.run.store.create_exclusive(
        f"{attempt.restart_key(restart)}/claim.json", json.dumps(claim).encode()
    ):
        raise StorageError(
            f"Restart {restart} of {attempt.path} was claimed by another process at the same time."
        )
    events = EventLog(attempt.events)
    checkpoint = None
    if not config.is_script:  # a script keeps checkpoints of its own

        def fell_back(name: CheckpointName, error: CheckpointDamaged) -> None:
            events.write("fallback", checkpoint=str(name), why=str(error))

        checkpoint = newest_verified(attempt.run.store_path(attempt.run.checkpoints_key), fell_back)
    step = checkpoint.manifest.step if checkpoint else 0
    before = _reached_before(attempt, restart)
    if checkpoint is not None or before:
        events.write(
            "resumed",
            restart=restart,
            step=step,
            epoch=checkpoint.manifest.epoch if checkpoint else 0,
            checkpoint=str(checkpoint.name) if checkpoint else None,
            world_size=checkpoint.manifest.world_size if checkpoint else None,
            redone_steps=max(0, before - step),
        )
    attempt.run.write_json(
        f"{attempt.restart_key(restart)}/plan.json",
        {"checkpoint": str(checkpoint.name) if checkpoint else None, "step": step},
    )
    return Plan(ref, restart, config.job_yaml, str(checkpoint.path) if checkpoint else None)


def _reached_before(attempt: Attempt, restart: int) -> int:
    """The step that the last start of the group had finished, in this attempt or the one before."""
    if restart > 0:
        return reached_step(attempt, restart - 1)
    earlier = [a for a in attempt.run.attempts() if a.n < attempt.n and a.restarts()]
    return reached_step(earlier[-1], max(earlier[-1].restarts())) if earlier else 0


class KitTrainer(TorchTrainer):  # type: ignore[misc]  # ray ships no types
    """TorchTrainer without two helpers that a run of ours does not need, each a process of 1 to 2 s.

    Ray Data's manager: data sets are files here. The cleaner of placement groups: only a Ray that outlives
    the run needs it, so it stays where the cluster is not ours.
    """

    def _create_default_callbacks(self) -> list[Any]:
        unneeded: tuple[type, ...] = (DatasetsCallback,)
        if "RAY_ADDRESS" not in os.environ:
            unneeded += (PlacementGroupCleanerCallback,)
        return [c for c in super()._create_default_callbacks() if not isinstance(c, unneeded)]


class StopRetrying(ClusterTrainError):
    """Raised into Ray Train's controller to end the run where another start would not help."""


class FailureWatch(WorkerGroupCallback, ControllerCallback):  # type: ignore[misc]  # ray ships no types
    """Names what ended a worker group, and ends the retries where the same would happen again."""

    def __init__(self, ref: AttemptRef, retries: int) -> None:
        self._ref = ref
        self._retries = retries
        self._group: Any = None
        self._signatures: set[tuple[str, int]] = set()
        self._verdict: str | None = None
        self._reported = False
        self._failures = 0

    # -- hooks of Ray Train's controller ---------------------------------------------------------

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._group, self._reported, self._verdict = worker_group, False, None
        attempt = self._ref.open()
        ranks = [
            {"rank": w.distributed_context.world_rank, "host": w.metadata.hostname, "pid": w.metadata.pid}
            for w in worker_group.get_workers()
        ]
        EventLog(attempt.events).write(
            "group_started", restart=max(attempt.restarts()), world_size=len(ranks), ranks=ranks
        )

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        if worker_group_status.errors and not self._reported:
            self._reported = True
            self._report(dict(worker_group_status.errors))

    def before_controller_execute_failure_decision(self, failure_decision: FailureDecision) -> None:
        events = EventLog(self._ref.open().events)
        if failure_decision == FailureDecision.RETRY:
            if self._verdict:
                raise StopRetrying(self._verdict)
            self._failures += 1
            events.write("restarting", restart=self._failures, of=self._retries)

    # -- the diagnosis ---------------------------------------------------------------------------

    def _report(self, errors: dict[int, BaseException]) -> None:
        attempt = self._ref.open()
        restart = max(attempt.restarts())
        reached = reached_step(attempt, restart)
        failure = self._first_cause(attempt, errors)
        failure |= {"restart": restart, "step": reached}
        attempt.run.write_json(f"{attempt.restart_key(restart)}/failure.json", failure)
        EventLog(attempt.events).write("worker_died", **failure)
        signature = (failure["signature"], reached)
        if failure["fatal"]:
            self._verdict = failure["text"]
        elif failure["signal"] != signal.SIGKILL and signature in self._signatures:
            self._verdict = f"the same error at the same step ({reached}) twice: {failure['text']}"
            failure["cause"] = "same_error_twice"
            attempt.run.write_json(f"{attempt.restart_key(restart)}/failure.json", failure)
        self._signatures.add(signature)

    def _first_cause(self, attempt: Attempt, errors: dict[int, BaseException]) -> dict[str, Any]:
        """A process that died outranks an exception: the others' exceptions are of the lost connection."""
        dead = set(self._dead_ranks(errors))
        workers = {w.distributed_context.world_rank: w for w in self._group.get_workers()}
        own = {rank: _base(error) for rank, error in errors.items()}
        for rank, error in sorted(own.items()):
            if isinstance(error, ClusterTrainError | RunStopped):
                dead.discard(rank)
                return {**_of_exception(rank, error), **_where(workers[rank])}
        if dead:
            rank = min(dead)
            return {**_of_death(attempt, rank, workers[rank]), **_where(workers[rank])}
        rank = min(errors, key=lambda r: (_is_collateral(own[r]), r))
        return {**_of_exception(rank, own[rank]), **_where(workers[rank])}

    def _dead_ranks(self, errors: dict[int, BaseException]) -> list[int]:
        """A poll can meet a survivor's exception before it meets the death that caused it: ask every rank."""
        dead = []
        for w in self._group.get_workers():
            rank = w.distributed_context.world_rank
            try:
                ray.get(w.actor.get_metadata.remote(), timeout=2)
            except RayActorError:
                dead.append(rank)
            except ray.exceptions.GetTimeoutError:
                self._note_state(rank, w)  # it cannot dump its stacks: the others' watchdogs have ended them
        return dead

    def _note_state(self, rank: int, w: Any) -> None:
        if w.metadata.hostname != socket.gethostname():
            return  # another machine's /proc cannot be read from here
        state = _process_state(w.metadata.pid)
        if state is not None:
            text = f"rank {rank} (pid {w.metadata.pid}) does not answer; its process is in state {state}"
            EventLog(self._ref.open().events).write("warning", text=text)


def _process_state(pid: int) -> str | None:
    """The state in /proc, such as "T (stopped)"; None where there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next(line.removeprefix("State:").strip() for line in lines if line.startswith("State:"))


def _where(w: Any) -> dict[str, Any]:
    return {"host": w.metadata.hostname, "pid": w.metadata.pid}


def _base(error: BaseException) -> BaseException:
    """The user's exception inside Ray Train's wrapper."""
    return getattr(error, "_base_exc", error)


def _is_collateral(error: BaseException) -> bool:
    return type(error).__name__ in ("DistBackendError", "DistNetworkError") or "closed by peer" in str(error)


def _of_exception(rank: int, error: BaseException) -> dict[str, Any]:
    kit_error = isinstance(error, ClusterTrainError)
    text = str(error) if kit_error else f"{type(error).__name__}: {error}"
    fatal = isinstance(error, RunStopped) or (kit_error and not isinstance(error, ScriptFailed))
    return {
        "rank": rank,
        "signal": getattr(error, "signal_number", None),
        "exit_code": getattr(error, "script_exit_code", None),
        "error": type(error).__name__,
        "text": text,
        "kit_exit_code": getattr(error, "exit_code", 1),
        "cause": "not_finite" if type(error).__name__.startswith("NonFinite") else "error",
        "signature": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        "fatal": fatal,
    }


def _of_death(attempt: Attempt, rank: int, w: Any) -> dict[str, Any]:
    """A process that vanished: a fatal signal that can be caught leaves its name in the rank's log.

    Python's faulthandler writes "Fatal Python error: Segmentation fault" (or Aborted, Bus error, …) there;
    a process that left nothing was killed by the one signal that leaves nothing, SIGKILL.
    """
    log = attempt.rank_log(w.metadata.hostname, rank)
    fatal_names = {
        "Segmentation fault": signal.SIGSEGV,
        "Aborted": signal.SIGABRT,
        "Bus error": signal.SIGBUS,
        "Floating point exception": signal.SIGFPE,
        "Illegal instruction": signal.SIGILL,
    }
    tail = _tail(log)
    number = next(
        (n for text, n in fatal_names.items() if f"Fatal Python error: {text}" in tail), signal.SIGKILL
    )
    if "clustertrain: no progress in phase" in tail:
        line = next(x for x in reversed(tail.splitlines()) if "clustertrain: no progress" in x)
        what = line.removeprefix("clustertrain: ").partition(";")[0]
        text = f"rank {rank} was ended by its watchdog: {what}"
        return {**_death(rank, None, text), "error": "watchdog"}
    where = f"pid {w.metadata.pid} on {w.metadata.hostname}"
    text = f"rank {rank} ({where}) died of signal {int(number)} ({number.name})"
    return _death(rank, int(number), text)


def _death(rank: int, number: int | None, text: str) -> dict[str, Any]:
    return {
        "rank": rank,
        "signal": number,
        "exit_code": None,
        "error": "signal",
        "text": text,
        "kit_exit_code": 1,
        "cause": "error",
        "signature": f"rank {rank} signal {number}",
        "fatal": False,
    }


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
