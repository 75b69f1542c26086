"""The failure of a worker group: which rank failed, the cause, and whether a restart would fail again.

A failure is written to the folder of the restart that failed; the event `worker_died` has the same fields.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from clustertrain.driver.calls import NoAnswer, RankDied, answer, answers, answers_by_rank
from clustertrain.driver.cause.diagnosis import Node, diagnose
from clustertrain.driver.cause.gpu_facts import Gpus
from clustertrain.driver.cause.signature import signature, signature_of
from clustertrain.errors import EXIT_JOB, ClusterTrainError, RunStopped
from clustertrain.explain.catalogue import UNKNOWN, Entry, Where
from clustertrain.explain.first_cause import Hit, has_consequence, known, shows_lost_peer
from clustertrain.node.gpus import Gpu, gpu_states, visible_gpus
from clustertrain.node.limits import Limits, process_state, read_limits
from clustertrain.node.processes import this_host
from clustertrain.run.claims import has_script_checkpoint
from clustertrain.run.command_line import command_on
from clustertrain.run.folder import Restart
from clustertrain.run.provenance import is_tried
from clustertrain.run.records import Failure
from clustertrain.run.streams.event_log import EventLog
from clustertrain.run.streams.rank_log import where_start_begins
from clustertrain.run.streams.step_counter import has_finished_a_step, reached_step
from clustertrain.worker import watchdog
from clustertrain.worker.code.error_report import ErrorReport, first_lines
from clustertrain.worker.code.user_error import UserCodeFailed
from clustertrain.worker.fork.ends import end_of_fork
from clustertrain.worker.machine import raylet_watch
from clustertrain.worker.scripts.script import ScriptFailed

_T = TypeVar("_T")
_LOG_TAIL_BYTES = 20_000
_STACKS_BYTES = 2 << 20  # of all threads, which follow the error that ended a process
_ANSWER_S = 5.0
_ALIVE_S, _ALIVE_EACH_S = 2.0, 0.001  # for all ranks to say that they live, and more for each of them
_BEGINNING_S = 300.0  # of a script, whose steps are not known; huggingface_hub tries for a minute
_STARTS_S = 20.0  # to start a Ray task on a busy node, and to receive its result
_OF_GPU = re.compile(r"CUDA|NCCL|CUDNN|GPU")
_OWN_FAULT = re.compile(
    r"(?:CUDA|HIP) error: "
)  # NCCL aborts a rank whose peer is gone, or whose own GPU failed
# Of code that has not finished a step yet. Later it may be a sample, or a file, that has them raised.
_MISTAKES = {"AttributeError", "LookupError", "NameError", "NotImplementedError", "TypeError"}
_NO_NETWORK = ("host_not_found", "no_route", "hub_unreachable")
_USAGE = re.compile(r"^\W*usage: ", re.IGNORECASE)
_FATAL_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}

_EXITS = {
    watchdog.EXIT_CODE: "its watchdog ended it",
    raylet_watch.EXIT_CODE: "the raylet of its node has ended",
}
_EXIT = "the code, or a library, called os._exit or exit"


class Group:
    """The workers of one restart, and the limits of their nodes at its start."""

    def __init__(self, worker_group: Any, restart: Restart) -> None:
        self._workers = {w.distributed_context.world_rank: w for w in worker_group.get_workers()}
        self._restart, self._attempt = restart, restart.attempt
        self.began_s = time.monotonic()
        self._limits: dict[int, Limits] = {}
        self._gpus: dict[int, tuple[Gpu, ...]] = {}
        self._clocks_ahead_s: dict[int, float] = {}
        self._answer_s = 0.0

    def note_limits(self, answer_s: float) -> None:
        """Ask the workers for them.

        Raises:
            NoAnswer: a worker has died, or has not answered within this time.
        """
        self._answer_s = answer_s

        def of_all(function: Callable[[], Any]) -> dict[int, Any]:
            found = answers([w.execute_async(function) for w in self._workers.values()], answer_s)
            return dict(zip(self._workers, found, strict=True))

        self._limits, self._gpus = of_all(read_limits), of_all(visible_gpus)
        asked = time.time()
        clocks = of_all(time.time)
        here = (asked + time.time()) / 2
        self._clocks_ahead_s = {rank: clock - here for rank, clock in clocks.items()}

    def as_event(self) -> dict[str, Any]:
        """Return the fields of the event `group_started`."""
        ranks = [
            {
                "rank": rank,
                "host": worker.metadata.hostname,
                "pid": worker.metadata.pid,
                "gpus": [asdict(gpu) for gpu in self._gpus[rank]],
                "clock_ahead_s": self._clocks_ahead_s[rank],
            }
            for rank, worker in self._workers.items()
        ]
        return {
            "restart": self._restart.number,
            "world_size": len(ranks),
            "clock_ahead_s": self._clocks_ahead_s[0],
            "ranks": ranks,
        }

    def report(self, errors: Mapping[int, BaseException]) -> None:
        """Determine the cause from the errors of the ranks, and record it."""
        if (hang := self._restart.hang.read()) is not None and hang.text:
            failure = self._failure(hang.rank, "JobError", hang.text, signature(hang.text))
            self._record(replace(failure, kit_exit_code=EXIT_JOB, fatal=True))
        else:
            self._record(self._first_cause({rank: _base(error) for rank, error in errors.items()}))

    def report_lost_worker(self, error: NoAnswer) -> None:
        """Record the failure of a worker that died or was silent before training began.

        The other workers may wait for it.
        """
        if isinstance(error, RankDied):
            dead = [rank for rank, worker in self._workers.items() if error.is_of(worker)]
            rank = min(dead or self._dead_ranks(), default=0)  # Ray's kill for memory names no worker
            self._record(self._of_dead_rank(rank, error))
            return
        silent = self._workers.keys() - self._answers().keys()  # one that stages data is silent, too
        rank = min(self.stopped_ranks() or silent, default=0)
        limit = f"An answer may take {self._answer_s:g} s at a start (failures.watchdog.first_step)."
        text = f"{self._silence(rank)}.\n{limit}"
        self._record(self._failure(rank, "watchdog", text, "watchdog", transient=True))

    def stopped_ranks(self) -> list[int]:
        """Return the ranks on this node that a signal has stopped."""
        here = [rank for rank, limits in self._limits.items() if limits.host == this_host()]
        return [r for r in here if (process_state(self._workers[r].metadata.pid) or "").startswith("T")]

    def _record(self, failure: Failure) -> None:
        failure = replace(failure, restart=self._restart.number, step=reached_step(self._restart))
        self._restart.failure.write(failure)
        EventLog(self._attempt.events).write("worker_died", **asdict(failure))

    def _first_cause(self, errors: dict[int, BaseException]) -> Failure:
        """Return the root cause.

        A dead process takes precedence over exceptions, which follow from the lost connection. With NCCL,
        however, the survivors die, too, and then an exception may be the cause.
        """
        for rank, error in sorted(errors.items()):
            if _is_of_kit(error):
                return self._of_exception(rank, error)
        dead = self._dead_ranks()
        first = next((rank for rank in sorted(dead) if not _died_of_lost_peer(self._tail(rank))), None)
        raised = {rank: error for rank, error in sorted(errors.items()) if rank not in dead}
        if first is None and all(map(_is_collateral, raised.values())):
            first = min(dead, default=None)
        if first is not None:
            return self._of_dead_rank(first, dead[first])
        found = [self._of_exception(rank, error) for rank, error in raised.items()]
        return min(found, key=lambda f: (not f.fatal, _is_collateral(errors[f.rank]), f.rank))

    # -- answers of the ranks and their nodes ------------------------------------------------------

    def _dead_ranks(self) -> dict[int, RankDied]:
        """Return the error for each dead rank, and write a warning for each silent rank.

        A poll can return a survivor's exception before the death that caused it, so every rank is asked.
        """
        answered = self._answers()
        for rank in self._workers.keys() - answered.keys():  # it cannot write its stacks; the other ranks did
            EventLog(self._attempt.events).write("warning", text=self._silence(rank))
        return {rank: error for rank, error in answered.items() if isinstance(error, RankDied)}

    def _answers(self) -> dict[int, Any]:
        """Return what the ranks answer, or their errors, without the silent ranks. All are asked at once."""
        calls = {rank: w.execute_async(os.getpid) for rank, w in self._workers.items()}
        return answers_by_rank(calls, _ALIVE_S + _ALIVE_EACH_S * len(calls))

    def _silence(self, rank: int) -> str:
        pid = self._workers[rank].metadata.pid
        state = self._call_on_node(rank, process_state, pid, is_silent=True)
        known = f"its process is in state {state}" if state else "the state of its process is unknown"
        return f"{self._who(rank)} does not answer; {known}"

    def _call_on_node(
        self, rank: int, function: Callable[..., _T], *args: Any, is_silent: bool = False
    ) -> _T | None:
        """Return the result of a function on the node of a rank.

        The function runs in this process if this process is on that node; otherwise in the rank, in another
        rank there, or in a new Ray task. The result is None if none answers, or if the node is unknown.

        Args:
            is_silent: the rank was asked already, and does not answer.
        """
        if rank not in self._limits:
            return None
        host = self._limits[rank].host
        if host == this_host():
            return function(*args)
        neighbours = [r for r, limits in self._limits.items() if limits.host == host and r != rank]
        for target in neighbours if is_silent else (rank, *neighbours):
            with suppress(Exception):  # dead, stopped, or without a free file descriptor
                found: _T = answer(self._workers[target].execute_async(function, *args), _ANSWER_S)
                return found
        return self._call_in_new_process(rank, function, *args)

    def _call_in_new_process(self, rank: int, function: Callable[..., _T], *args: Any) -> _T | None:
        """Run the function in a new Ray task: the rank was the only worker of its node, as in a pod."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(self._workers[rank].metadata.node_id, soft=False)
        target = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        try:
            found: _T = ray.get(target.remote(*args), timeout=_STARTS_S)
        except ray.exceptions.RayError:  # the node is gone as well
            return None
        return found

    def _who(self, rank: int) -> str:
        where = self._workers[rank].metadata
        return f"rank {rank} (pid {where.pid} on {where.hostname})"

    def _tail(self, rank: int) -> str:
        """Return the end of the rank's log since this start of the group."""
        text = _tail(self._attempt.rank_log(self._workers[rank].metadata.hostname, rank))
        return text[where_start_begins(text, self._restart.number) :]

    # -- one rank's failure ----------------------------------------------------------------------

    def _of_exception(self, rank: int, error: BaseException) -> Failure:
        if isinstance(error, UserCodeFailed):
            return self._of_user_code(rank, error)
        if isinstance(error, ScriptFailed):
            return self._of_script(rank, error)
        name, message = type(error).__name__, f"{type(error).__name__}: {error}"
        if _is_of_kit(error):
            failure = self._failure(rank, name, str(error), signature(message))
            cause = "not_finite" if name.startswith("NonFinite") else "error"
            return replace(failure, cause=cause, kit_exit_code=error.exit_code, fatal=True)
        text = f"rank {rank}: {name}: {first_lines(str(error), 3, 600)}"
        return self._diagnosed(self._failure(rank, name, text, signature(message)), message)

    def _of_user_code(self, rank: int, error: UserCodeFailed) -> Failure:
        report = error.report
        text = f"{report.text(f'rank {rank}')}\n{self._where_whole(rank)}"
        failure = self._failure(rank, report.name, text, signature_of(report))
        failure = self._diagnosed(failure, report.whole_message(), report)
        if error.refusal and failure.cause == "error" and self._is_mistake(report.whole_message()):
            return replace(failure, text=error.refusal, kit_exit_code=EXIT_JOB, fatal=True)
        return failure

    def _is_mistake(self, message: str) -> bool:
        """Return whether an exception before the first step shows a mistake in the job or the code.

        Then neither the network, the storage, the memory, a GPU nor another rank has caused it.
        """
        entries = [hit.entry for hit in known(message)]
        is_other = any(each.retry == "always" or each.ends_as != "error" for each in entries)
        is_other = is_other or shows_lost_peer(message) or _OF_GPU.search(message) is not None
        return not is_other and not is_tried(self._attempt)

    def _of_script(self, rank: int, error: ScriptFailed) -> Failure:
        report, code, name = error.report, error.returncode, type(error).__name__
        ended = f"signal {-code}" if code < 0 else f"code {code}"
        of_end = {"signal": -code} if code < 0 else {"exit_code": code}
        of_end["transient"] = -code == signal.SIGKILL
        if report is None:
            said = signature(f"{ended}: {error.last_line}")
            return self._diagnosed(
                self._failure(rank, name, str(error), said, **of_end), str(error), said=_last_word(error)
            )
        text = f"{error}\n{self._where_whole(rank)}"
        failure = self._failure(rank, name, text, signature_of(report), **of_end)
        return self._diagnosed(failure, report.whole_message(), report)

    def _has_just_begun(self) -> bool:
        """Return whether this is the first start of the attempt's workers, at most a few minutes ago."""
        return self._restart.number == 0 and time.monotonic() - self.began_s < _BEGINNING_S

    def _is_untried(self) -> bool:
        """Return whether this code has finished no step yet, in this attempt or before a checkpoint."""
        return not has_finished_a_step(self._attempt) and not has_script_checkpoint(self._attempt.run)

    def _where_whole(self, rank: int) -> str:
        logs = command_on(self._attempt.uri, "logs", "--rank", str(rank))
        return f"The whole traceback: {logs}"

    def _of_dead_rank(self, rank: int, error: RankDied) -> Failure:
        """Return the failure of a dead process.

        Its log shows the fatal signal if the signal can be caught: Python's faulthandler writes "Fatal Python
        error: Segmentation fault" (or Aborted, Bus error, …). Without such a line the parent knows its end,
        if it is a fork; otherwise it counts as killed by SIGKILL, which cannot be caught.
        """
        tail = self._tail(rank)
        message = f"{error}\n{tail}"
        if "clustertrain: no progress in phase" in tail:
            line = next(x for x in reversed(tail.splitlines()) if "clustertrain: no progress" in x)
            what = line.removeprefix("clustertrain: ").partition(";")[0]
            text = f"rank {rank} was ended by its watchdog: {what}"
            failure = self._failure(rank, "watchdog", text, "watchdog", transient=True)
            return self._diagnosed(failure, message, said=text)
        number = next(
            (n for text, n in _FATAL_SIGNALS.items() if f"Fatal Python error: {text}" in tail), None
        )
        if number is None:
            end = self._call_on_node(rank, end_of_fork, self._workers[rank].metadata.pid, is_silent=True)
            if end is not None and end >= 0:
                return self._of_exit(rank, end, message)
            number = signal.Signals(-end if end is not None else signal.SIGKILL)
        text = f"{self._who(rank)} died of signal {int(number)} ({number.name})"
        failure = self._failure(
            rank,
            "signal",
            text,
            f"signal {int(number)}",
            signal=int(number),
            transient=number not in _FATAL_SIGNALS.values(),
        )
        return self._diagnosed(failure, message, said=text)

    def _of_exit(self, rank: int, code: int, message: str) -> Failure:
        """Return the failure of a process that ended itself without an exception."""
        why, is_of_kit = _EXITS.get(code, _EXIT), code in _EXITS
        text = f"{self._who(rank)} ended itself with exit code {code}: {why}"
        failure = self._failure(rank, "exit", text, f"exit code {code}", exit_code=code, transient=is_of_kit)
        return self._diagnosed(failure, message, said=text)

    def _failure(self, rank: int, error: str, text: str, signature: str, **more: Any) -> Failure:
        where = self._workers[rank].metadata
        entry = _entry_of(known(text)).name
        return Failure(rank, error, text, signature, host=where.hostname, pid=where.pid, entry=entry, **more)

    def _diagnosed(
        self, failure: Failure, message: str, report: ErrorReport | None = None, *, said: str = ""
    ) -> Failure:
        """Return the same failure with what the catalogue and the node say of it.

        That is its cause, and whether another start can help.

        Args:
            message: the message of the error; for a dead process Ray's message, and the end of its log.
            report: of the exception of the user's code.
            said: the part of the message that tells why it ended, if it is not all of it.
        """
        rank = failure.rank
        if (before := self._limits.get(rank)) is not None:
            is_of_log = failure.error in ("signal", "exit", "watchdog")
            now = self._call_on_node(rank, read_limits, [group.path for group in before.cgroups])
            node = Node(before, now, self._gpus_of(rank, message), Where.of(self._attempt))
            tail, killed = "" if is_of_log else self._tail(rank), failure.signal == signal.SIGKILL
            found = diagnose(self._who(rank), message, node, tail=tail, killed=killed)
            if found is not None:
                return replace(
                    failure,
                    entry=found.entry.name,
                    cause=found.entry.ends_as,
                    text=found.text,
                    fatal=found.retry_after_s is None,
                    transient=bool(found.retry_after_s),
                    retry_after_s=found.retry_after_s or 0.0,
                    broken_node=self._workers[rank].metadata.node_id if found.of_hardware else "",
                )
        return self._judged(failure, said or message, report)

    def _judged(self, failure: Failure, said: str, report: ErrorReport | None) -> Failure:
        """Return the same failure, as fatal, with the reason, if the error is certain to occur again."""
        hits = known(said)
        if (
            report is None and failure.of_script
        ):  # what it last printed may be of an error that it has handled
            hits = [hit for hit in hits if hit.entry.retry == "never"]
        entry = _entry_of(hits)
        may_pass = any(hit.entry.retry == "always" for hit in hits)
        is_certain = entry.retry == "never"
        if report is not None:
            at_start = self._has_just_begun() and failure.of_script  # nobody knows the steps of a script
            of_peer = report.name.startswith("Dist")
            is_certain |= at_start and entry.name in _NO_NETWORK and not of_peer
            is_own = report.frames and _MISTAKES.intersection(report.classes) and not may_pass
            is_certain |= bool(is_own) and (at_start or not failure.of_script) and self._is_untried()
        if not is_certain:
            transient = failure.transient or entry.retry == "always"
            return replace(failure, entry=entry.name, transient=transient)
        text = f"{failure.text}\nAnother start would fail in the same way, so the workers are not restarted."
        return replace(failure, entry=entry.name, text=text, fatal=True)

    def _gpus_of(self, rank: int, message: str) -> Gpus:
        """Return the GPUs of a rank; they are looked at only after an error that names CUDA."""
        gpus = self._gpus[rank] if _OF_GPU.search(message) else ()
        host = self._limits[rank].host
        pids = {w.metadata.pid for r, w in self._workers.items() if self._limits[r].host == host}
        states = (self._call_on_node(rank, gpu_states, gpus) or ()) if gpus else ()
        return Gpus(states, pids, self._workers[rank].metadata.hostname)


def _entry_of(hits: list[Hit]) -> Entry:
    return hits[0].entry if hits else UNKNOWN


def _last_word(error: ScriptFailed) -> str:
    """Return how a script without a traceback ended, and what it last printed.

    Its other lines may be of errors that it has handled.
    """
    first, *lines = str(error).splitlines()
    usage = [line for line in lines if _USAGE.match(line)]
    return "\n".join([first, *usage[:1], error.last_line])


def _died_of_lost_peer(log: str) -> bool:
    """Return whether a rank died because it lost another rank, by the end of its log.

    The log of the rank that is at fault shows another reason or, if the rank was killed, none.
    """
    return has_consequence(log) and _OWN_FAULT.search(log) is None


def _is_of_kit(error: BaseException) -> TypeGuard[ClusterTrainError | RunStopped]:
    """Return whether this is an error of the job, the data or the storage, or a stop.

    Such an error ends the run, and its text is complete.
    """
    return isinstance(error, ClusterTrainError | RunStopped) and not isinstance(error, ScriptFailed)


def _base(error: BaseException) -> BaseException:
    """Return the user's exception inside Ray Train's wrapper, or the error itself without a wrapper."""
    return getattr(error, "_base_exc", error)


def _is_collateral(error: BaseException) -> bool:
    report = getattr(error, "report", None)
    return shows_lost_peer(
        report.whole_message() if report is not None else f"{type(error).__name__}: {error}"
    )


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _STACKS_BYTES))
            text = file.read().decode(errors="replace")
            error = text.rfind("\nFatal Python error: ")  # Python then writes the stacks
            end = error if error >= 0 else len(text)
            return text[max(0, end - _LOG_TAIL_BYTES) :]
    except FileNotFoundError:
        return ""
