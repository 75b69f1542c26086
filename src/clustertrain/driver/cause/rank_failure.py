"""The failure of one rank: its cause, and whether another start would fail again."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import replace
from typing import Any, TypeGuard

from clustertrain.driver.calls import RankDied
from clustertrain.driver.cause.diagnosis import NodeFacts, diagnose
from clustertrain.driver.cause.gpu_facts import Gpus
from clustertrain.driver.cause.ranks import Ranks
from clustertrain.driver.cause.signature import signature, signature_of
from clustertrain.errors import EXIT_JOB, ClusterTrainError, RunStopped
from clustertrain.node.gpus import gpu_states
from clustertrain.node.limits import read_limits
from clustertrain.observe.explain.catalogue import UNKNOWN, KnownError, RunKind
from clustertrain.observe.explain.first_cause import FoundError, known, shows_lost_peer
from clustertrain.run_files.claims import has_script_checkpoint
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.provenance import is_tried
from clustertrain.run_files.records.result import Failure
from clustertrain.run_files.streams.step_counter import has_finished_a_step
from clustertrain.worker import watchdog
from clustertrain.worker.code.error_report import ErrorReport, first_lines
from clustertrain.worker.code.user_error import UserCodeFailed
from clustertrain.worker.fork.ends import end_of_fork
from clustertrain.worker.machine import raylet_watch
from clustertrain.worker.scripts.script import ScriptFailed

BEGINNING_S = 300.0  # of a script, whose steps are not known; huggingface_hub tries for a minute
_OF_GPU = re.compile(r"CUDA|NCCL|CUDNN|GPU")
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


class RankFailures:
    """The failures of the ranks of one start."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def of_exception(self, rank: int, error: BaseException) -> Failure:
        """Return the failure of a rank that raised an exception."""
        if isinstance(error, UserCodeFailed):
            return self._of_user_code(rank, error)
        if isinstance(error, ScriptFailed):
            return self._of_script(rank, error)
        name, message = type(error).__name__, f"{type(error).__name__}: {error}"
        if is_own_error(error):
            failure = self.failure(rank, name, str(error), signature(message))
            cause = "not_finite" if name.startswith("NonFinite") else "error"
            return replace(failure, cause=cause, run_exit_code=error.exit_code, fatal=True)
        text = f"rank {rank}: {name}: {first_lines(str(error), 3, 600)}"
        return self._diagnosed(self.failure(rank, name, text, signature(message)), message)

    def _of_user_code(self, rank: int, error: UserCodeFailed) -> Failure:
        report = error.report
        text = f"{report.text(f'rank {rank}')}\n{self._where_whole(rank)}"
        failure = self.failure(rank, report.name, text, signature_of(report))
        failure = self._diagnosed(failure, report.whole_message(), report)
        if error.refusal and failure.cause == "error" and self._is_mistake(report.whole_message()):
            return replace(failure, text=error.refusal, run_exit_code=EXIT_JOB, fatal=True)
        return failure

    def _is_mistake(self, message: str) -> bool:
        """Return whether an exception before the first step shows a mistake in the job or the code.

        Then neither the network, the storage, the memory, a GPU nor another rank has caused it.
        """
        entries = [hit.entry for hit in known(message)]
        is_other = any(each.retry == "always" or each.ends_as != "error" for each in entries)
        is_other = is_other or shows_lost_peer(message) or _OF_GPU.search(message) is not None
        return not is_other and not is_tried(self._ranks.attempt)

    def _of_script(self, rank: int, error: ScriptFailed) -> Failure:
        report, code, name = error.report, error.returncode, type(error).__name__
        ended = f"signal {-code}" if code < 0 else f"code {code}"
        of_end = {"signal": -code} if code < 0 else {"exit_code": code}
        of_end["transient"] = -code == signal.SIGKILL
        if report is None:
            said = signature(f"{ended}: {error.last_line}")
            return self._diagnosed(
                self.failure(rank, name, str(error), said, **of_end), str(error), said=_last_word(error)
            )
        text = f"{error}\n{self._where_whole(rank)}"
        failure = self.failure(rank, name, text, signature_of(report), **of_end)
        return self._diagnosed(failure, report.whole_message(), report)

    def _has_just_begun(self) -> bool:
        """Return whether this is the first start of the attempt's workers, at most a few minutes ago."""
        return self._ranks.restart.number == 0 and time.monotonic() - self._ranks.began_s < BEGINNING_S

    def _is_untried(self) -> bool:
        """Return whether this code has finished no step yet, in this attempt or before a checkpoint."""
        return not has_finished_a_step(self._ranks.attempt) and not has_script_checkpoint(
            self._ranks.attempt.run
        )

    def _where_whole(self, rank: int) -> str:
        logs = command_on(self._ranks.attempt.uri, "logs", "--rank", str(rank))
        return f"The whole traceback: {logs}"

    def of_dead_rank(self, rank: int, error: RankDied) -> Failure:
        """Return the failure of a dead process.

        Its log shows the fatal signal if the signal can be caught: Python's faulthandler writes "Fatal Python
        error: Segmentation fault" (or Aborted, Bus error, …). Without such a line the parent knows its end,
        if it is a fork; otherwise it counts as killed by SIGKILL, which cannot be caught.
        """
        tail = self._ranks.log_tail(rank)
        message = f"{error}\n{tail}"
        if "clustertrain: no progress in phase" in tail:
            line = next(x for x in reversed(tail.splitlines()) if "clustertrain: no progress" in x)
            what = line.removeprefix("clustertrain: ").partition(";")[0]
            text = f"rank {rank} was ended by its watchdog: {what}"
            failure = self.failure(rank, "watchdog", text, "watchdog", transient=True)
            return self._diagnosed(failure, message, said=text)
        number = next(
            (n for text, n in _FATAL_SIGNALS.items() if f"Fatal Python error: {text}" in tail), None
        )
        if number is None:
            end = self._ranks.call_on_node(
                rank, end_of_fork, self._ranks.workers[rank].metadata.pid, is_silent=True
            )
            if end is not None and end >= 0:
                return self._of_exit(rank, end, message)
            number = signal.Signals(-end if end is not None else signal.SIGKILL)
        text = f"{self._ranks.who(rank)} died of signal {int(number)} ({number.name})"
        failure = self.failure(
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
        why, is_ours = _EXITS.get(code, _EXIT), code in _EXITS
        text = f"{self._ranks.who(rank)} ended itself with exit code {code}: {why}"
        failure = self.failure(rank, "exit", text, f"exit code {code}", exit_code=code, transient=is_ours)
        return self._diagnosed(failure, message, said=text)

    def failure(self, rank: int, error: str, text: str, signature: str, **more: Any) -> Failure:
        """Return a failure of a rank, with its process; the catalogue has its entry by the text."""
        where = self._ranks.workers[rank].metadata
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
        if (before := self._ranks.limits.get(rank)) is not None:
            is_of_log = failure.error in ("signal", "exit", "watchdog")
            now = self._ranks.call_on_node(rank, read_limits, [group.path for group in before.cgroups])
            node = NodeFacts(before, now, self._gpus_of(rank, message), RunKind.of(self._ranks.attempt))
            tail, killed = "" if is_of_log else self._ranks.log_tail(rank), failure.signal == signal.SIGKILL
            found = diagnose(self._ranks.who(rank), message, node, tail=tail, killed=killed)
            if found is not None:
                return replace(
                    failure,
                    entry=found.entry.name,
                    cause=found.entry.ends_as,
                    text=found.text,
                    fatal=found.retry_after_s is None,
                    transient=bool(found.retry_after_s),
                    retry_after_s=found.retry_after_s or 0.0,
                    broken_node=self._ranks.workers[rank].metadata.node_id if found.of_hardware else "",
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
        gpus = self._ranks.gpus[rank] if _OF_GPU.search(message) else ()
        host = self._ranks.limits[rank].host
        pids = {w.metadata.pid for r, w in self._ranks.workers.items() if self._ranks.limits[r].host == host}
        states = (self._ranks.call_on_node(rank, gpu_states, gpus) or ()) if gpus else ()
        return Gpus(states, pids, self._ranks.workers[rank].metadata.hostname)


def _entry_of(hits: list[FoundError]) -> KnownError:
    return hits[0].entry if hits else UNKNOWN


def _last_word(error: ScriptFailed) -> str:
    """Return how a script without a traceback ended, and what it last printed.

    Its other lines may be of errors that it has handled.
    """
    first, *lines = str(error).splitlines()
    usage = [line for line in lines if _USAGE.match(line)]
    return "\n".join([first, *usage[:1], error.last_line])


def is_own_error(error: BaseException) -> TypeGuard[ClusterTrainError | RunStopped]:
    """Return whether this is an error of the job, the data or the storage, or a stop.

    Such an error ends the run, and its text is complete.
    """
    return isinstance(error, ClusterTrainError | RunStopped) and not isinstance(error, ScriptFailed)
