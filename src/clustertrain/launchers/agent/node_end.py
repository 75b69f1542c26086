"""Ends a run before its driver ends: on a lost node, or a newer attempt."""

from __future__ import annotations

import select
import time
from contextlib import suppress
from dataclasses import dataclass, field

from clustertrain.errors import StorageError
from clustertrain.launchers.agent.node import NodeStart, ray_ended, result_of_late_node
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.rendezvous import failures
from clustertrain.run_files.result import ended, failed
from clustertrain.supervise.process import Guarded

_CHECK_EVERY_S = 2.0  # the interval of the checks for a lost node and for a newer attempt
_RAY_ENDS_WITHIN_S = 3.0  # ray_process polls every 0.5 s, and then its guardian ends the rest of Ray


@dataclass
class NodeEnd:
    """The part of an EndPolicy for the nodes, for the agent of the head node."""

    start: NodeStart
    attempt: Attempt
    ray: Guarded
    checked_at: float = field(default=0.0, init=False)
    ended_agent: str = field(default="", init=False)

    def find_lost_node(self) -> str:
        """Return a sentence on the node that the scheduler reports as lost, or an empty text."""
        return ""

    def find_ended_agent(self) -> str:
        """Return why the agent of another node has ended, or an empty text."""
        return ""

    def end_of_a_node(self, is_training: bool) -> Result | None:
        """Return the result if a node was lost or a newer attempt runs; look every 2 s."""
        if time.monotonic() - self.checked_at < _CHECK_EVERY_S:
            return None
        self.checked_at = time.monotonic()
        if self.ray.code() is not None:
            return self._node_lost(str(ray_ended(self.start.host, self.ray)), is_training)
        if lost := self.find_lost_node():
            return ended(self.attempt, "lost", "node_fail", text=lost)
        impatient = self.attempt.run.with_patience(0).attempt(self.attempt.n)
        with suppress(StorageError):  # the next save fails with the same error and reports it
            if result := taken_over(impatient) or self._failed_arrival(impatient, is_training):
                return result
        return self._end_of_an_agent(is_training)

    def after_driver(self, is_training: bool) -> Result | None:
        """Return the result if the driver wrote none because Ray on this node has ended; else None."""
        if self.attempt.result.exists():
            return None
        select.select([self.ray.fd], [], [], _RAY_ENDS_WITHIN_S)
        if self.ray.code() is None:
            return None
        return self._node_lost(str(ray_ended(self.start.host, self.ray)), is_training)

    def _end_of_an_agent(self, is_training: bool) -> Result | None:
        """Return the result if another node's agent had ended, at two checks in a row.

        An agent that finds the storage writes there why it ends.
        """
        before, self.ended_agent = self.ended_agent, self.find_ended_agent()
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
        return result_of_late_node(self.attempt, self.start.job, text, self.start.settings.next_start)


def taken_over(attempt: Attempt) -> Result | None:
    """Return the result of an attempt after which another one has begun; else None."""
    newest = attempt.run.attempt_after(attempt.n)
    if newest is None:
        return None
    text = f"Attempt {newest.n} has taken over the run; this attempt ends."
    return ended(attempt, "stopped", "terminated", text=text)
