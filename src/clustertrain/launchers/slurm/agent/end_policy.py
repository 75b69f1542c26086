"""Ends a run on SLURM before its driver ends: on SLURM's signals, a lost node, or a newer attempt."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from clustertrain.launchers.agent.node import LEAD_SIGNALS, TERM_SIGNALS
from clustertrain.launchers.agent.node_end import NodeEnd
from clustertrain.launchers.slurm.agent.mailbox import (
    Mailbox,
    SlurmEnd,
    ended_agent,
    ending_of,
    lost_node,
)
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.node import variables
from clustertrain.observe.screen import Screen
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import ended
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.supervise.supervisor import request_stop


@dataclass
class SlurmEndPolicy(NodeEnd):
    """An EndPolicy for the agent of the head node."""

    signals: Sequence[int]
    mail: Mailbox
    screen: Screen
    ending: SlurmEnd | None = None
    term_seen: bool = False

    def end_now(self, is_training: bool) -> Result | None:
        return self._end_of_the_job(is_training) or self.end_of_a_node(is_training)

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

    def _ending(self, answer: str, asked: float, *, is_lead: bool) -> SlurmEnd:
        restart = int(self.start.record.start or 0)
        ending = ending_of(answer, restart=restart, is_lead=is_lead, asked=asked)
        if "JobState=" not in answer and self.ending is not None:  # it was SLURM that warned before
            return SlurmEnd(self.ending.cause, ending.deadline)
        if ending.cause == "terminated":  # the signal is not from SLURM, so there is no deadline
            return SlurmEnd("terminated", asked + self.start.job.failures.grace_s + 30)
        if "JobState=" not in answer and not self.term_seen:  # the end is at SLURM's TERM, which asks again
            return SlurmEnd("time_limit", math.inf)
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

    # -- a node is lost ----------------------------------------------------------------------------

    def find_lost_node(self) -> str:
        errors = self.mail.errors()
        return lost_node(errors, self.mail.query_job()) if lost_node(errors, "") else ""

    def find_ended_agent(self) -> str:
        return ended_agent(self.mail.errors()) if self.ending is None else ""


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
