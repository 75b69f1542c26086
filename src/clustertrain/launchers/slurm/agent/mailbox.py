"""Messages between the batch shell and the agent of its node: files in a folder of that node.

    batch shell ──lead, term──▶ agent      SLURM sent a signal
    batch shell ◀──query────── agent       query the state of the job
    batch shell ──answer─────▶ agent       a line of `scontrol show job -o`, KillWait, the time, lost nodes
    batch shell ──errors─────▶ agent       what srun and the agents of all nodes print to stderr
    batch shell ◀──agent────── agent       the agent has started
    batch shell ◀──verdict──── agent       "requeue 75" or "end 1": requeue or end the job; the exit code

The agent's messages are empty files. On a full disk the verdict is the target of a symbolic link, which needs
no room.

The agent may run in a container without scontrol. The folder is mounted there, so both can use it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clustertrain.launchers.slurm.queue import slurm_duration_s, slurm_time_s
from clustertrain.node import variables
from clustertrain.node.waiting import wait_until

_ANSWER_WITHIN_S = 5.0
_ERRORS_BYTES = 1 << 20
_KILL_WAIT_S = 30.0  # SLURM's default
_MARGIN_S = 3.0  # to write the result and to end everything


@dataclass(frozen=True)
class SlurmEnd:
    """The cause of a job's end, and the deadline, which is shortly before SLURM kills the job.

    `cause` is a cause of states.STATES; `deadline` is a time of time.monotonic().
    """

    cause: str
    deadline: float


class Mailbox:
    """The agent's end of the message exchange."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_this_job(cls, environ: Mapping[str, str] = os.environ) -> Mailbox | None:
        """Return the mailbox of the job, or None on all nodes but the node of the batch shell."""
        folder, is_first = environ.get(variables.MAIL), environ.get("SLURM_NODEID", "0") == "0"
        return cls(Path(folder)) if folder and is_first else None

    def report_start(self) -> None:
        """Report to the batch shell that the agent has started."""
        (self._folder / "agent").touch()

    def has_lead(self) -> bool:
        """Return whether SLURM sent slurm.signal, which it sends slurm.lead_time before the end."""
        return (self._folder / "lead").exists()

    def has_term(self) -> bool:
        return (self._folder / "term").exists()

    def query_job(self) -> str:
        """Return SLURM's description of the job, from the batch shell; empty without an answer within 5 s."""
        answer = self._folder / "answer"
        answer.unlink(missing_ok=True)
        (self._folder / "query").touch()
        answered = wait_until(answer.exists, _ANSWER_WITHIN_S, poll_s=0.05)
        return answer.read_text(errors="replace") if answered else ""

    def errors(self) -> str:
        """Return the end of what srun and the agents of all nodes have printed to stderr."""
        try:
            with (self._folder / "errors").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _ERRORS_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def write_verdict(self, verdict: str, code: int) -> None:
        """Write the verdict for the batch shell: `requeue` or `end`, and the exit code."""
        new = self._folder / "verdict.new"
        try:
            new.write_text(f"{verdict} {code}\n")
        except OSError:
            new.unlink(missing_ok=True)
            new.symlink_to(f"{verdict} {code}")
        new.replace(self._folder / "verdict")


def lost_node(errors: str, answer: str) -> str:
    """Return a sentence on the lost node of the job, or an empty text if none is lost.

    With the node's state in `answer`, it has the time and the reason that SLURM gives.

    Args:
        errors: the text of `Mailbox.errors`; srun reports the loss there.
        answer: the answer of `Mailbox.query_job`, which has the node's state, or "".
    """
    if down := re.search(r"^Down: ([^|]+)\|([^|]+)\|([^|]+)\|(.*)$", answer, re.MULTILINE):
        return f"Node {down[1]} was lost: SLURM has it as {down[2]} since {down[3]} ({down[4]})."
    report = re.search(r"^srun: error: Node failure on (\S+)", errors, re.MULTILINE)
    return f"Node {report[1]} was lost: srun reports its failure." if report else ""


def ended_agent(errors: str) -> str:
    """Return the node whose agent has ended, by srun's report, and the last lines from there.

    Return an empty text if srun reports no such node.
    """
    match = _ENDED.search(errors)
    if match is None:
        return ""
    node, how = match[1] or match[3], match[2] or match[4]
    own = re.findall(rf"^{re.escape(node)}: (?:error: )?(.+)$", errors, re.MULTILINE)
    if not own and (exec_failed := _EXEC.search(errors)):
        own = [f"{exec_failed[1]}. See slurm.python, or the program of slurm.container."]
    words = "\n".join(own) or "The lines of that node in the job's output show the cause."
    return f"The agent on {node} has ended, as srun reports: {how}.\n{words}"


_ENDED = re.compile(
    r"^srun: error: (?:(\S+): tasks? [\d,-]+: (.+)|Task launch for \S+ failed on node (\S+): (.+))$",
    re.MULTILINE,
)
_EXEC = re.compile(r"^slurmstepd\S*: error: (execve\(\): .+)$", re.MULTILINE)


def ending_of(answer: str, *, restart: int, is_lead: bool, asked: float) -> SlurmEnd:
    """Determine from SLURM's description of the job why it ends, and when (as measured with SLURM 22.05).

    A job that is preempted with a grace time is RUNNING and has a PreemptTime. A cancelled job is COMPLETING
    or CANCELLED. A job that SLURM requeues has one restart more. A job at its limit has RunTime ≥ TimeLimit.

    Args:
        answer: the answer of `Mailbox.query_job`.
        restart: the number of earlier starts of the job.
        is_lead: whether the signal was that of slurm.signal, sent before the end of the time limit.
        asked: time.monotonic() at the query: SLURM counts KillWait from its signal, not from a late answer.
    """
    fields = dict(re.findall(r"(\w+)=(\S*)", answer))
    kill_wait = re.search(r"KillWait\s*=\s*(\d+)", answer)
    wait_s = float(kill_wait.group(1)) if kill_wait else _KILL_WAIT_S
    state = fields.get("JobState", "")
    ends_at_s = slurm_time_s(fields.get("EndTime", "")) if state == "RUNNING" else None
    as_of = re.search(r"^Configuration data as of (\S+)", answer, re.MULTILINE)
    slurms_s = slurm_time_s(as_of.group(1)) if as_of else None  # this node's clock may be wrong
    ends_in_s = max(0.0, ends_at_s - slurms_s) if ends_at_s is not None and slurms_s is not None else 0.0
    deadline = asked + ends_in_s + wait_s - _MARGIN_S
    if slurm_time_s(fields.get("PreemptTime", "")) is not None or state == "PREEMPTED":
        return SlurmEnd("preempted", deadline)
    if int(fields.get("Restarts") or 0) > restart:
        return SlurmEnd("requeued", deadline)
    if state == "RUNNING":
        return SlurmEnd("time_limit" if is_lead else "terminated", deadline)
    if state == "TIMEOUT" or _at_its_limit(fields):
        return SlurmEnd("time_limit", deadline)
    if state in ("COMPLETING", "CANCELLED"):
        return SlurmEnd("cancelled", deadline)
    return SlurmEnd("time_limit" if is_lead else "terminated", deadline)


def _at_its_limit(fields: Mapping[str, str]) -> bool:
    limit_s, run_s = (
        slurm_duration_s(fields.get("TimeLimit", "")),
        slurm_duration_s(fields.get("RunTime", "")),
    )
    return limit_s is not None and run_s is not None and run_s >= limit_s
