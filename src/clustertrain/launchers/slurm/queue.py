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
from dataclasses import replace
from datetime import datetime

from clustertrain.errors import ClusterError
from clustertrain.launchers.scheduler.interface import Phase, Sent, State
from clustertrain.launchers.shell import CommandFailed, CommandMissing, run

ANSWER_S = 10.0  # if the controller is down, squeue retries for 18 s: too long for an interactive command


# Every state of `man squeue`, JOB STATE CODES: its phase, and what it means if SLURM gives no reason.
NATIVE_STATES: dict[str, tuple[Phase, str]] = {
    "PENDING": ("waits", ""),
    "REQUEUED": ("waits", "is being requeued"),
    "REQUEUE_FED": ("waits", "is being requeued in its federation"),
    "REQUEUE_HOLD": ("held", "was requeued and is held: scontrol release JOBID"),
    "RESV_DEL_HOLD": ("held", "is held, because its reservation was deleted"),
    "SPECIAL_EXIT": ("held", "was requeued and is held: scontrol release JOBID"),
    "CONFIGURING": ("starts", "its nodes are not ready yet"),
    "SUSPENDED": ("suspended", "was suspended by the scheduler"),
    "STOPPED": ("suspended", "was stopped (SIGSTOP) by the scheduler"),
    "RUNNING": ("runs", ""),
    "RESIZING": ("runs", ""),
    "SIGNALING": ("runs", ""),
    "STAGE_OUT": ("runs", ""),
    "COMPLETING": ("ends", "SLURM is ending its last processes"),
    "COMPLETED": ("ended", ""),
    "FAILED": ("ended", ""),
    "CANCELLED": ("cancelled", ""),
    "PREEMPTED": ("ended", "was preempted and not requeued"),
    "TIMEOUT": ("timed out", "it reached its time limit"),
    "DEADLINE": ("timed out", "it reached its deadline"),
    "NODE_FAIL": ("ended", "lost a node"),
    "BOOT_FAIL": ("ended", "a node did not boot"),
    "OUT_OF_MEMORY": ("ended", "was killed because it exceeded its memory limit"),
    "REVOKED": ("ended", "was started by another cluster of the federation: query that one"),
}
_NO_REASON = ("", "None", "NonZeroExitCode")  # of a job that is over or runs, the state says as much


def query_queue(jobs: Sequence[Sent]) -> dict[str, State]:
    """Return the states of some jobs in SLURM.

    Raises:
        ClusterError: SLURM does not answer, or this machine's cluster is another one.
    """
    job_ids = [job.job_id for job in jobs]
    try:
        found = query_squeue(job_ids)
    except CommandMissing:
        raise ClusterError("squeue is not on PATH here") from None
    except CommandFailed as error:
        printed = error.stderr.strip().splitlines() or [f"squeue {error.how}"]
        raise ClusterError(f"SLURM does not answer: {printed[-1].strip()}") from None
    cluster = jobs[0].place.get("cluster")
    if cluster and (here := cluster_name()) and here != cluster:
        raise ClusterError(f"SLURM's cluster here is {here}, the run's is {cluster}")
    if purged := [job_id for job_id in job_ids if job_id not in found]:
        found |= _from_accounting(purged)
    return found


_UNKNOWN = "Invalid job id"
_SQUEUE = ("squeue", "--noheader")
_COLUMNS = ("JobID", "State", "RestartCnt", "TimeLeft", "StartTime", "exit_code", "NodeList")


def query_squeue(job_ids: Sequence[str]) -> dict[str, State]:
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
    return dict(_parsed(line) for line in printed.splitlines() if line.count("|") > len(_COLUMNS))


def _parsed(line: str) -> tuple[str, State]:
    """Parse a line of squeue, and return the ID of the job and its state.

    The reason is the last column, because only it may contain the separator.
    """
    job_id, native, restarts, left, starts, status, nodes, reason = line.split("|", len(_COLUMNS))
    time_left = left.lower() if left == "UNLIMITED" or re.fullmatch(r"[\d:-]+", left) else ""
    state = state_of(native, reason.removesuffix("|"), nodes, _exit_code(native, status))
    rows = {"time left": time_left if state.phase in ("runs", "starts", "suspended", "ends") else ""}
    if (requeued := int(restarts) if restarts.isdecimal() else 0) > 0:
        rows["requeued"] = f"{requeued} times" if requeued > 1 else "once"
    # Of a job that does not wait, StartTime is the time of its start.
    return job_id, replace(state, start=restarts, starts_at=slurm_time_s(starts), rows=rows)


def state_of(native: str, reason: str, nodes: str, code: int | None) -> State:
    """Return a state in SLURM's words; an unknown one counts as running, and the heartbeat shows more."""
    phase, meaning = NATIVE_STATES.get(native, ("runs", ""))
    # A cancelled job may keep the reason of its wait.
    why = meaning if phase == "cancelled" or reason in _NO_REASON else reason
    why = f"{meaning}: {why}" if phase == "held" and why != meaning else why
    return State(native, phase, why, nodes, code)


def _exit_code(native: str, status: str) -> int | None:
    """Return the exit code of the batch script, from its wait() status.

    Return None before its end, or after a signal.
    """
    code, signal_number = divmod(int(status), 256) if status.isdecimal() else (0, 0)
    return code if not signal_number and native in ("COMPLETED", "FAILED") else None


def _environment() -> dict[str, str]:
    """Return the environment without the variables that change what SLURM's commands do.

    SQUEUE_PARTITION=low hides all other jobs, and with SCANCEL_INTERACTIVE scancel waits for an answer from
    the terminal.
    """
    excluded = ("SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_TIME_FORMAT")
    return {name: value for name, value in os.environ.items() if not name.startswith(excluded)}


def _from_accounting(job_ids: Sequence[str]) -> dict[str, State]:
    """Return the states in the accounting of slurmdbd; empty without accounting or an answer."""
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(job_ids)}"]
    try:
        argv.append("--format=JobID,State,NodeList")
        done = run(argv, environ=_environment(), timeout_s=ANSWER_S, check=False)
    except ClusterError:
        return {}
    found = {}
    lines = done.stdout.splitlines() if done.code == 0 else ()
    for line in (each for each in lines if each.count("|") == 2):
        job_id, native, nodes = line.split("|")
        native = native.partition(" ")[0]  # "CANCELLED by 1000"
        nodes = "" if nodes == "None assigned" else nodes
        found[job_id] = state_of(native, "", nodes, 0 if native == "COMPLETED" else None)
    return found


def cluster_name() -> str | None:
    """Return the name of this machine's cluster, or None if SLURM does not answer."""
    with suppress(ClusterError):
        done = run(["scontrol", "show", "config"], timeout_s=ANSWER_S)
        found = re.search(r"^ClusterName\s*=\s*(\S+)", done.stdout, re.MULTILINE)
        return found[1] if found else None
    return None


def place_of(cluster: str | None) -> dict[str, str]:
    """Return the place of the jobs of a cluster; empty if its name is not known."""
    return {"cluster": cluster} if cluster else {}


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


def slurm_duration_s(text: str) -> int | None:
    """Return the seconds of `10:00` (m:s), `1:00:00` or `2-00:00:00`; None for every other text.

    `UNLIMITED`, `infinite` and `n/a` are such texts.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def slurm_time_s(text: str) -> float | None:
    """Return the seconds since 1970 of `2026-11-21T16:09:55`; None for another text.

    The text is in the cluster's time zone.
    """
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:
        return None
