"""Ends a run on SLURM before its driver ends: on SLURM's signals, a lost node, or a newer attempt."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from clustertrain import variables
from clustertrain.errors import StorageError
from clustertrain.launchers.slurm.agent.mailbox import (
    Ending,
    Mailbox,
    ended_agent,
    ending_of,
    lost_node,
)
from clustertrain.launchers.slurm.agent.node import Start, ray_ended
from clustertrain.launchers.slurm.ray_start_retry import result_of_late_node
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.node.signals import REQUESTS_TO_END
from clustertrain.observe.screen import Screen
from clustertrain.run.folder.run_dir import Attempt
from clustertrain.run.records.result import Result
from clustertrain.run.rendezvous import failures
from clustertrain.run.result import ended, failed
from clustertrain.run.streams.event_log import EventLog
from clustertrain.supervise.process import Guarded
from clustertrain.supervise.supervisor import request_stop

LEAD_SIGNALS = {signal.SIGUSR1, signal.SIGUSR2}
"""SLURM sends one of these slurm.lead_time before the end (slurm.signal). Others mean an immediate end."""
TERM_SIGNALS = {*REQUESTS_TO_END} - LEAD_SIGNALS

_CHECK_EVERY_S = 2.0  # the interval of the checks for a lost node and for a newer attempt
_RAY_ENDS_WITHIN_S = 3.0  # ray_process polls every 0.5 s, and then its guardian ends the rest of Ray


@dataclass
class SlurmEndPolicy:
    """An EndPolicy for the agent of the head node."""

    start: Start
    attempt: Attempt
    ray: Guarded
    signals: Sequence[int]
    mail: Mailbox
    screen: Screen
    ending: Ending | None = None
    term_seen: bool = False
    checked_at: float = 0.0
    ended_agent: str = ""

    def end_now(self, is_training: bool) -> Result | None:
        return self._end_of_the_job(is_training) or self._end_of_a_node(is_training)

    def after_driver(self, is_training: bool) -> Result | None:
        """Return the result if the driver wrote none because Ray on this node has ended; else None."""
        if self.attempt.result.exists():
            return None
        select.select([self.ray.fd], [], [], _RAY_ENDS_WITHIN_S)
        if self.ray.code() is None:
            return None
        return self._node_lost(str(ray_ended(self.start.host, self.ray)), is_training)

    # -- SLURM ends the job ----------------------------------------------------------------------

    def _end_of_the_job(self, is_training: bool) -> Result | None:
        """Request a save of the workers after a signal; end the run shortly before SLURM would kill it."""
        shell_term = self.mail.has_term()
        term = not TERM_SIGNALS.isdisjoint(self.signals) or shell_term
        lead = not LEAD_SIGNALS.isdisjoint(self.signals) or self.mail.has_lead()
        if (term and not self.term_seen) or (lead and self.ending is None):
            self.term_seen = term
            is_lead_term = shell_term and self.start.job.section(Slurm).signal == "TERM"
            asked, answer = time.monotonic(), self.mail.query_job()
            if lost := lost_node("", answer):  # a save would wait for the ranks of that node
                return ended(self.attempt, "lost", "node_fail", text=lost)
            self.ending = self._ending(answer, asked, is_lead=not term or is_lead_term)
            self._request_stop(self.ending.cause, is_training)
        if self.ending is None:
            return None
        state, cause = self._state_of(self.ending.cause), self.ending.cause
        if not is_training:
            return ended(self.attempt, state, cause)
        if time.monotonic() < self.ending.deadline:
            return None
        late = _LATE_SCRIPT if self.start.job.is_script else _LATE_SAVE
        return ended(self.attempt, state, cause, text=late)

    def _ending(self, answer: str, asked: float, *, is_lead: bool) -> Ending:
        restart = int(self.start.record.start or 0)
        ending = ending_of(answer, restart=restart, is_lead=is_lead, asked=asked)
        if "JobState=" not in answer and self.ending is not None:  # it was SLURM that warned before
            return Ending(self.ending.cause, ending.deadline)
        if ending.cause == "terminated":  # the signal is not from SLURM, so there is no deadline
            return Ending("terminated", asked + self.start.job.failures.grace_s + 30)
        if "JobState=" not in answer and not self.term_seen:  # the end is at SLURM's TERM, which asks again
            return Ending("time_limit", math.inf)
        return ending

    def _request_stop(self, cause: str, is_training: bool) -> None:
        state = self._state_of(cause)
        text = _RESULT_TEXTS.get(cause, "") if state == "stopped" else ""
        request_stop(self.attempt, state, cause, self.screen, text=text)
        of_script = self.start.job.is_script
        how = "the script gets SIGTERM" if of_script else "the workers finish this step and save"
        how = how if is_training else "no worker has started, and nothing is to be saved"
        text = f"{_CAUSE_TEXTS[cause]}: {how}"
        EventLog(self.attempt.agent_events).write("note", text=text)

    def _state_of(self, cause: str) -> str:
        """Return the state of a run that ends for this cause: `preempted` if its job is requeued."""
        if cause == "time_limit":
            return "preempted" if os.environ.get(variables.AT_TIME_LIMIT) == "requeue" else "stopped"
        if cause == "preempted":
            return "preempted" if self.start.job.section(Slurm).requeue else "stopped"
        return {"cancelled": "cancelled", "terminated": "stopped"}.get(cause, "preempted")

    # -- a node is lost, or a newer attempt runs ---------------------------------------------------

    def _end_of_a_node(self, is_training: bool) -> Result | None:
        if time.monotonic() - self.checked_at < _CHECK_EVERY_S:
            return None
        self.checked_at = time.monotonic()
        if self.ray.code() is not None:
            return self._node_lost(str(ray_ended(self.start.host, self.ray)), is_training)
        errors = self.mail.errors()
        if lost_node(errors, ""):
            return ended(self.attempt, "lost", "node_fail", text=lost_node(errors, self.mail.query_job()))
        impatient = self.attempt.run.with_patience(0).attempt(self.attempt.n)
        with suppress(StorageError):  # the next save fails with the same error and reports it
            if result := _taken_over(impatient) or self._failed_arrival(impatient, is_training):
                return result
        return self._ended_agent(errors, is_training)

    def _ended_agent(self, errors: str, is_training: bool) -> Result | None:
        """Return the result if srun has reported the end of another node's agent, at two checks in a row.

        An agent that finds the storage writes there why it ends.
        """
        before, self.ended_agent = self.ended_agent, ended_agent(errors) if self.ending is None else ""
        return self._node_lost(self.ended_agent, is_training) if before and self.ended_agent else None

    def _failed_arrival(self, attempt: Attempt, is_training: bool) -> Result | None:
        """Return the result if a node could not join the run, or was lost; else None."""
        for failure in failures(attempt):
            if failure.error is not None:
                if failure.exit_code is None:
                    return self._node_lost(failure.error, is_training)
                return failed(self.attempt, failure.error, failure.exit_code)
        return None

    def _node_lost(self, text: str, is_training: bool) -> Result:
        """Return the result after the loss of a node, which another start of the job follows.

        If no worker had started, the job needs several nodes for another start.
        """
        if is_training:
            return ended(self.attempt, "lost", "node_fail", text=text)
        return result_of_late_node(self.attempt, self.start.job, text)


def _taken_over(attempt: Attempt) -> Result | None:
    newest = attempt.run.attempt_after(attempt.n)
    if newest is None:
        return None
    text = f"Attempt {newest.n} has taken over the run; this attempt ends."
    return ended(attempt, "stopped", "terminated", text=text)


_CAUSE_TEXTS = {
    "preempted": "SLURM preempts the job",
    "requeued": "SLURM requeues the job",
    "time_limit": "the time limit is near",
    "cancelled": "the job was cancelled",
    "terminated": "a signal requests the end",
}
_LATE_SAVE = "The last save did not finish before SLURM's deadline. The run resumes from the save before it."
_LATE_SCRIPT = "The script had not ended before SLURM's deadline. What it had not saved is lost."
_RESULT_TEXTS = {
    "time_limit": "The time limit was reached before the end of training. Submit the job again to continue.",
    "preempted": "The job was preempted, and slurm.requeue is false. Submit the job again to continue.",
}
