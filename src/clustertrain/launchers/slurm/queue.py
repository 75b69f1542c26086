"""The states of jobs in SLURM: from `squeue`, and from `sacct` for jobs that squeue no longer lists.

A finished job stays in the queue for MinJobAge (300 s by default) and is then purged. Therefore the result of
a run is in the storage. `sacct` needs slurmdbd. Without it only one fact is missing: why a purged job ended
that wrote no result. The commands are always installed; PySlurm has to be built for the cluster's SLURM.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from clustertrain.errors import ClusterError
from clustertrain.launchers.scheduler.interface import Answer, JobState, Meaning, ordinal
from clustertrain.launchers.shell import CommandFailed, CommandMissing, run
from clustertrain.launchers.slurm.times import slurm_time_s

ANSWER_S = 10.0  # if the controller is down, squeue retries for 18 s: too long for an interactive command


# Every state of `man squeue`, JOB STATE CODES.
NATIVE_STATES: dict[str, Meaning] = {
    "PENDING": Meaning("queued", "scheduler", "waits in the queue"),
    "REQUEUED": Meaning("queued", "requeued", "is being requeued"),
    "REQUEUE_FED": Meaning("queued", "requeued", "is being requeued in its federation"),
    "REQUEUE_HOLD": Meaning("queued", "held", "was requeued and is held: scontrol release JOBID"),
    "RESV_DEL_HOLD": Meaning("queued", "held", "is held, because its reservation was deleted"),
    "SPECIAL_EXIT": Meaning("queued", "held", "was requeued and is held: scontrol release JOBID"),
    "CONFIGURING": Meaning("waiting", "nodes", "has nodes, which are not ready yet"),
    "SUSPENDED": Meaning("waiting", "suspended", "was suspended by the scheduler"),
    "STOPPED": Meaning("waiting", "suspended", "was stopped (SIGSTOP) by the scheduler"),
    "RUNNING": Meaning("running", "training", "runs"),
    "RESIZING": Meaning("running", "training", "is about to change size"),
    "SIGNALING": Meaning("running", "training", "is being signalled"),
    "STAGE_OUT": Meaning("running", "training", "is staging files out"),
    "COMPLETING": Meaning("running", "training", "is ending: SLURM is ending its last processes", "ending"),
    "COMPLETED": Meaning("lost", "vanished", "ended with code 0 and wrote no result", "succeeded"),
    "FAILED": Meaning("lost", "vanished", "failed before it could write a result", "failed"),
    "CANCELLED": Meaning("cancelled", "cancelled", "was cancelled through SLURM"),
    "PREEMPTED": Meaning("lost", "preempted", "was preempted and not requeued"),
    "TIMEOUT": Meaning("lost", "time_limit", "reached its time limit before it could write a result"),
    "DEADLINE": Meaning("lost", "time_limit", "reached its deadline before it could write a result"),
    "NODE_FAIL": Meaning("lost", "node_fail", "lost a node"),
    "BOOT_FAIL": Meaning("lost", "boot_fail", "could not be launched: a node did not boot"),
    "OUT_OF_MEMORY": Meaning("lost", "out_of_memory", "was killed because it exceeded its memory limit"),
    "REVOKED": Meaning("lost", "revoked", "was started by another cluster of the federation: query that one"),
}


@dataclass(frozen=True)
class QueueState(JobState):
    """The state of one job in squeue or sacct, which does not contain the number of requeues.

    `nodes` is in SLURM's short form, such as node[1-2]; `time_left` is d-hh:mm:ss, or UNLIMITED.
    """

    meanings = NATIVE_STATES

    def end_of(self, job_text: str) -> str:
        why = self.reason if self.native == "FAILED" else ""  # other states are a reason
        return f"{super().end_of(job_text)}: {why}" if why else super().end_of(job_text)


def query_queue(job_ids: Sequence[str]) -> Answer:
    """Return the states of some jobs in SLURM.

    No error is raised: `Answer.no_answer` contains it.
    """
    try:
        jobs = query_squeue(job_ids)
    except CommandMissing:
        return Answer({}, "squeue is not on PATH here")
    except CommandFailed as error:
        return Answer({}, f"SLURM does not answer: {_error_text(error)}")
    purged = [job_id for job_id in job_ids if job_id not in jobs]
    if not purged:
        return Answer(jobs)
    return Answer({**_from_accounting(purged), **jobs}, cluster=cluster_name())


def _error_text(error: CommandFailed) -> str:
    lines = error.stderr.strip().splitlines()
    return lines[-1].strip() if lines else f"squeue {error.how}"


_UNKNOWN = "Invalid job id"
_SQUEUE = ("squeue", "--noheader")
_COLUMNS = (
    *("JobID", "State", "RestartCnt", "TimeLeft", "Cluster"),
    *("SubmitTime", "StartTime", "exit_code", "NodeList"),
)


def query_squeue(job_ids: Sequence[str]) -> dict[str, QueueState]:
    """Return the jobs that squeue still lists, with one call of it; purged jobs are omitted.

    Raises:
        CommandMissing: squeue is not on PATH.
        CommandFailed: SLURM does not answer.
    """
    columns = ",".join(f"{name}:|" for name in (*_COLUMNS, "Reason"))
    argv = [*_SQUEUE, "--states=all", f"--jobs={','.join(job_ids)}", f"--Format={columns}"]
    try:
        printed = run(argv, environ=_environment(), timeout_s=ANSWER_S).stdout
    except CommandFailed as error:
        if _UNKNOWN in error.stderr:  # only with a single ID
            return {}
        raise
    found = [_parsed(line) for line in printed.splitlines() if line.count("|") > len(_COLUMNS)]
    return {state.job_id: state for state in found}


def position(job_id: str) -> str:
    """Return the position of a waiting job in its partition's queue, by priority.

    It is empty if SLURM hides jobs of other users, or does not answer.
    """
    if "jobs" in _settings().get("PrivateData", ""):
        return ""
    argv = [*_SQUEUE, "--array", "--states=PENDING", "--sort=-p", "--format=%P|%i"]
    try:
        printed = run(argv, environ=_environment(), timeout_s=ANSWER_S).stdout
    except ClusterError:
        return ""
    jobs = [line.strip().partition("|") for line in printed.splitlines()]
    own = next((partition for partition, _, each in jobs if each == job_id), None)
    before = [each for partition, _, each in jobs if partition == own]
    return f"{ordinal(before.index(job_id) + 1)} in its partition's queue" if own is not None else ""


def _parsed(line: str) -> QueueState:
    """Parse a line of squeue.

    The reason is the last column, because only it may contain the separator.
    """
    job_id, native, restarts, left, cluster, submitted, starts, status, nodes, reason = line.split("|", 9)
    return QueueState(
        job_id=job_id,
        native=native,
        reason="" if reason == "None|" else reason.removesuffix("|"),
        restarts=int(restarts) if restarts.isdecimal() else None,
        nodes=nodes,
        time_left=left if left == "UNLIMITED" or re.fullmatch(r"[\d:-]+", left) else "",
        cluster=cluster,
        submitted_at=slurm_time_s(submitted),
        start_estimate=slurm_time_s(starts),  # of a job that does not wait, the time of its start
        exit_code=_exit_code(status),
    )


def _exit_code(status: str) -> int | None:
    """Return the nonzero exit code of the batch script, from its wait() status.

    Return None for 0 and after a signal.
    """
    code, signal_number = divmod(int(status), 256) if status.isdecimal() else (0, 0)
    return code if code and not signal_number else None


def _environment() -> dict[str, str]:
    """Return the environment without the variables that change what SLURM's commands do.

    SQUEUE_PARTITION=low hides all other jobs, and with SCANCEL_INTERACTIVE scancel waits for an answer from
    the terminal.
    """
    excluded = ("SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_TIME_FORMAT")
    return {name: value for name, value in os.environ.items() if not name.startswith(excluded)}


def _from_accounting(job_ids: Sequence[str]) -> dict[str, QueueState]:
    """Return the states in the accounting of slurmdbd; empty without accounting or an answer."""
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(job_ids)}"]
    try:
        argv.append("--format=JobID,State,Cluster,NodeList")
        done = run(argv, environ=_environment(), timeout_s=ANSWER_S, check=False)
    except ClusterError:
        return {}
    found = {}
    lines = done.stdout.splitlines() if done.code == 0 else ()
    for line in (each for each in lines if each.count("|") == 3):
        job_id, native, cluster, nodes = line.split("|")
        native = native.partition(" ")[0]  # "CANCELLED by 1000"
        nodes = "" if nodes == "None assigned" else nodes
        found[job_id] = QueueState(job_id, native, "", None, nodes, cluster=cluster)
    return found


def cluster_name() -> str | None:
    """Return the name of this machine's cluster, or None if SLURM does not answer."""
    return _settings().get("ClusterName") or None


def _settings() -> dict[str, str]:
    """Return the names and values of `scontrol show config`, or an empty dict if SLURM does not answer."""
    with suppress(ClusterError):
        done = run(["scontrol", "show", "config"], timeout_s=ANSWER_S)
        return dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", done.stdout, re.MULTILINE))
    return {}


def cancel(job_id: str, *, only_waiting: bool = False) -> None:
    """Cancel a job; no effect if it has ended or, with `only_waiting`, if it has started.

    Raises:
        CommandMissing: scancel is not on PATH.
        CommandFailed: SLURM does not answer, or the job belongs to another user.
    """
    argv = ["scancel", *(["--state=PENDING"] if only_waiting else []), job_id]
    try:
        run(argv, environ=_environment(), timeout_s=2 * ANSWER_S)
    except CommandFailed as error:
        if _UNKNOWN not in error.stderr:
            raise
