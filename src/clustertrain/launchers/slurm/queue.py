"""What SLURM knows of jobs: `squeue` for those that it has not forgotten, `sacct` where accounting is on.

A finished job stays in the queue for MinJobAge (300 s by default) and is then forgotten, so the truth about
an end is in the storage; without slurmdbd nothing here is missed but the cause of a death without a word.
PySlurm has to be built for the version of SLURM that a cluster runs; the commands are always there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from clustertrain.errors import ClusterError
from clustertrain.launchers.shell import CommandFailed, CommandMissing, run
from clustertrain.launchers.slurm.times import slurm_time_s
from clustertrain.run.states import STATES

ANSWER_S = 10.0  # a controller that is down makes squeue try for 18 s; somebody waits for this


@dataclass(frozen=True)
class Native:
    """What one of SLURM's states means here: a row of states.STATES, where the job left no result itself."""

    state: str
    cause: str
    text: str


# Every state of `man squeue`, JOB STATE CODES.
NATIVE_STATES: dict[str, Native] = {
    "PENDING": Native("queued", "scheduler", "waits in the queue"),
    "REQUEUED": Native("queued", "requeued", "is put back into the queue"),
    "REQUEUE_FED": Native("queued", "requeued", "is put back into the queue of its federation"),
    "REQUEUE_HOLD": Native("queued", "held", "is back in the queue and held: scontrol release JOBID"),
    "RESV_DEL_HOLD": Native("queued", "held", "is held, since its reservation was deleted"),
    "SPECIAL_EXIT": Native("queued", "held", "is back in the queue and held: scontrol release JOBID"),
    "CONFIGURING": Native("waiting", "nodes", "has its nodes, which are coming up"),
    "SUSPENDED": Native("waiting", "suspended", "was suspended by the scheduler"),
    "STOPPED": Native("waiting", "suspended", "was stopped (SIGSTOP) by the scheduler"),
    "RUNNING": Native("running", "training", "runs"),
    "RESIZING": Native("running", "training", "is about to change size"),
    "SIGNALING": Native("running", "training", "is being signalled"),
    "STAGE_OUT": Native("running", "training", "is staging files out"),
    "COMPLETING": Native("running", "training", "is ending: its last processes are being cleared away"),
    "COMPLETED": Native("lost", "vanished", "ended with code 0 and left no result"),
    "FAILED": Native("lost", "vanished", "failed before it could write a result"),
    "CANCELLED": Native("cancelled", "cancelled", "was cancelled at the scheduler"),
    "PREEMPTED": Native("lost", "preempted", "was preempted and not put back into the queue"),
    "TIMEOUT": Native("lost", "time_limit", "reached its time limit before it could write a result"),
    "DEADLINE": Native("lost", "time_limit", "reached its deadline before it could write a result"),
    "NODE_FAIL": Native("lost", "node_fail", "lost a node"),
    "BOOT_FAIL": Native("lost", "boot_fail", "could not be launched: a node did not boot"),
    "OUT_OF_MEMORY": Native("lost", "out_of_memory", "was killed by its memory limit"),
    "REVOKED": Native("lost", "revoked", "was started by another cluster of the federation: look there"),
}

_REASONS = {
    "Priority": "jobs of higher priority come first",
    "Resources": "waits until enough is free",
    "BeginTime": "may not begin before a set time; after a requeue SLURM waits a while",
    "Cleaning": "what is left of its last start is being cleared away",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "the job it waits for ended otherwise: it will never start",
    "PartitionConfig": "asks for what its partition does not give: it may never start",
    "PartitionNodeLimit": "asks for more nodes than its partition gives: it may never start",
    "PartitionTimeLimit": "asks for more time than its partition gives: it may never start",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition starts no jobs",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node has what it asks for: it will never start",
    "Reservation": "waits for its reservation",
    "Licenses": "waits for a licence",
    "JobHeldUser": "held by its user: scontrol release JOBID",
    "JobHeldAdmin": "held by an administrator",
    "JobHoldMaxRequeue": "held, since it was requeued too often: scontrol release JOBID",
    "launch_failed_requeued_held": "its launch failed; held: scontrol release JOBID",
    "InvalidAccount": "its account is not valid: it will never start",
    "InvalidQOS": "its qos is not valid: it will never start",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its qos may not be used there",
}
_LIMITS = {"QOS": "a limit of its qos", "Assoc": "a limit of its account"}  # how many reasons begin


@dataclass(frozen=True)
class QueueState:
    """One job as SLURM tells of it.

    Attributes:
        native: SLURM's word, a key of NATIVE_STATES.
        reason: SLURM's word for why it waits or ended so; empty where there is none.
        restarts: how often it was requeued; None where SLURM does not say, which is sacct.
        nodes: SLURM's short form, node[1-2]; empty while it has none.
        time_left: d-hh:mm:ss, or UNLIMITED; empty where it has no meaning.
        submitted_at: seconds since 1970; after a requeue the time of that. None where SLURM does not say.
    """

    job_id: str
    native: str
    reason: str = ""
    restarts: int | None = 0
    nodes: str = ""
    time_left: str = ""
    cluster: str = ""
    submitted_at: float | None = None
    exit_code: int | None = None

    @property
    def meaning(self) -> Native:
        """A state that SLURM may get one day means that the job lives: heartbeat and result tell the rest."""
        return NATIVE_STATES.get(self.native) or Native("running", "training", f"is {self.native}")

    @property
    def is_waiting(self) -> bool:
        return self.meaning.state == "queued"

    @property
    def is_over(self) -> bool:
        return STATES[self.meaning.state].final

    @property
    def has_nodes(self) -> bool:
        return not self.is_waiting and not self.is_over

    @property
    def text(self) -> str:
        """SLURM's word and a few more: "PENDING (Priority: jobs of higher priority come first)"."""
        is_stale = self.native == "CANCELLED"  # it keeps the reason why it waited before
        return f"{self.native} ({reason_text(self.reason)})" if self.reason and not is_stale else self.native


def reason_text(reason: str) -> str:
    """SLURM's reason and what it means; the reason alone where it speaks for itself."""
    word = re.split(r"[,:( ]", reason, maxsplit=1)[0]
    limit = next((text for start, text in _LIMITS.items() if word.startswith(start)), None)
    meaning = _REASONS.get(word) or limit
    return f"{reason}: {meaning}" if meaning else reason


@dataclass(frozen=True)
class Answer:
    """What SLURM said of some jobs. `no_answer`: why it said nothing, None where it answered."""

    jobs: Mapping[str, QueueState]
    no_answer: str | None = None
    cluster: str | None = None  # this machine's, where a job that was asked for is not in its queue


def query_queue(job_ids: Sequence[str]) -> Answer:
    """What SLURM knows of some jobs; never an error."""
    if not job_ids:
        return Answer({})
    try:
        jobs = look_up(job_ids)
    except CommandMissing:
        return Answer({}, "squeue is not on PATH here")
    except CommandFailed as error:
        return Answer({}, f"SLURM does not answer: {_error_text(error)}")
    gone = [job_id for job_id in job_ids if job_id not in jobs]
    if not gone:
        return Answer(jobs)
    return Answer({**_from_accounting(gone), **jobs}, cluster=cluster_name())


def _error_text(error: CommandFailed) -> str:
    lines = error.stderr.strip().splitlines()
    return lines[-1].strip() if lines else f"squeue {error.how}"


_COLUMNS = (
    "JobID",
    "State",
    "RestartCnt",
    "TimeLeft",
    "Cluster",
    "SubmitTime",
    "exit_code",
    "NodeList",
    "Reason",
)


def look_up(job_ids: Sequence[str]) -> dict[str, QueueState]:
    """The jobs that SLURM still knows, in one call of squeue; those that it has forgotten are left out.

    Raises:
        CommandMissing: squeue is not here.
        CommandFailed: SLURM does not answer.
    """
    columns = ",".join(f"{name}:|" for name in _COLUMNS)
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={','.join(job_ids)}", f"--Format={columns}"]
    done = run(argv, environ=_environment(), timeout_s=ANSWER_S, check=False)
    if done.code and "Invalid job id" in done.stderr:  # of several ids, those that are unknown are left out
        return {}
    if done.code:
        raise CommandFailed(argv, done.code, done.stdout, done.stderr, f"ended with code {done.code}")
    found = [_parsed(line) for line in done.stdout.splitlines() if line.count("|") >= len(_COLUMNS)]
    return {state.job_id: state for state in found}


def _parsed(line: str) -> QueueState:
    """The reason comes last: it alone is free text."""
    job_id, native, restarts, left, cluster, submitted, status, nodes, reason = line.split("|", 8)
    reason = reason.removesuffix("|")
    return QueueState(
        job_id=job_id,
        native=native,
        reason="" if reason == "None" else reason,
        restarts=int(restarts) if restarts.isdecimal() else None,
        nodes=nodes,
        time_left=left if left == "UNLIMITED" or re.fullmatch(r"[\d:-]+", left) else "",
        cluster=cluster,
        submitted_at=slurm_time_s(submitted),
        exit_code=_exit_code(status),
    )


def _exit_code(status: str) -> int | None:
    """Of the batch script, out of what wait() gave; None while it runs, and where a signal ended it."""
    code, signal_number = divmod(int(status), 256) if status.isdecimal() else (0, 0)
    return code if code and not signal_number else None


def _environment() -> dict[str, str]:
    """Without what would filter or reformat the answer: SQUEUE_PARTITION=low hides all other jobs."""
    ours = ("SQUEUE_", "SACCT_", "SLURM_TIME_FORMAT")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _from_accounting(job_ids: Sequence[str]) -> dict[str, QueueState]:
    """What slurmdbd remembers; empty where there is none, or it does not answer: it is not needed."""
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(job_ids)}"]
    try:
        argv.append("--format=JobID,State,Cluster,NodeList")
        done = run(argv, environ=_environment(), timeout_s=ANSWER_S, check=False)
    except ClusterError:
        return {}
    found = {}
    for line in done.stdout.splitlines() if done.code == 0 else ():
        job_id, native, cluster, nodes = line.split("|", 3)
        native = native.partition(" ")[0]  # "CANCELLED by 1000"
        nodes = "" if nodes == "None assigned" else nodes
        found[job_id] = QueueState(job_id, native, "", None, nodes, cluster=cluster)
    return found


def cluster_name() -> str | None:
    """The name of this machine's cluster; None where SLURM does not say."""
    with suppress(ClusterError):
        done = run(["scontrol", "show", "config"], timeout_s=ANSWER_S)
        found = re.search(r"^ClusterName\s*=\s*(\S+)", done.stdout, re.MULTILINE)
        return found[1] if found else None
    return None


def cancel(job_id: str, *, only_waiting: bool = False) -> None:
    """Cancel a job; nothing happens where it has ended. `only_waiting`: leave it where it has started.

    Raises:
        CommandMissing: scancel is not here.
        CommandFailed: SLURM does not answer, or it is another user's job.
    """
    argv = ["scancel", *(["--state=PENDING"] if only_waiting else []), job_id]
    done = run(argv, timeout_s=2 * ANSWER_S, check=False)
    if done.code and "Invalid job id" not in done.stderr:
        raise CommandFailed(argv, done.code, done.stdout, done.stderr, f"ended with code {done.code}")
