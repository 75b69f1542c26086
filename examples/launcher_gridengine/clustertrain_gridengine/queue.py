"""The states of jobs: qstat lists those that wait or run, qacct those that have ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from clustertrain.errors import ClusterError
from clustertrain.launchers.scheduler.interface import Answer, JobState, Meaning
from clustertrain.launchers.shell import CommandFailed, CommandMissing, run

ANSWER_S = 20.0
_RESCHEDULING = "25"  # what the accounting says of a start after which the job waited for another one

# qstat's state is a set of letters; the first of these that it has determines the meaning.
LETTERS = {
    "E": Meaning("queued", "held", "could not be started; held"),
    "d": Meaning("running", "training", "is being deleted", "ending"),
    "s": Meaning("waiting", "suspended", "was suspended"),
    "S": Meaning("waiting", "suspended", "was suspended with its queue"),
    "T": Meaning("waiting", "suspended", "was suspended: its host is overloaded"),
    "t": Meaning("waiting", "nodes", "is being sent to its host"),
    "r": Meaning("running", "training", "runs"),  # also if it is held, which counts after a restart
    "h": Meaning("queued", "held", "is held"),
    "q": Meaning("queued", "scheduler", "waits in the queue"),
}
ENDED = {
    "ended": Meaning("lost", "vanished", "ended with code 0 and wrote no result", "succeeded"),
    "failed": Meaning("lost", "vanished", "failed before it could write a result", "failed"),
    "out of time": Meaning("lost", "time_limit", "reached its time limit before it could write a result"),
}


@dataclass(frozen=True)
class GridEngineState(JobState):
    """A job in qstat, whose state is letters such as `qw`, or in qacct."""

    meanings = ENDED

    @property
    def meaning(self) -> Meaning:
        if self.native in ENDED:
            return ENDED[self.native]
        found = (meaning for letter, meaning in LETTERS.items() if letter in self.native)
        return next(found, super().meaning)


def query(job_ids: Sequence[str]) -> Answer:
    """The states of some jobs. Raises no error: `Answer.no_answer` contains it."""
    try:
        listed = _parsed(run(["qstat", "-xml", "-u", "*"], timeout_s=ANSWER_S).stdout, job_ids)
    except CommandMissing:
        return Answer({}, "qstat is not on PATH here")
    except CommandFailed as error:
        printed = error.stderr.strip().splitlines()
        return Answer({}, f"Grid Engine does not answer: {printed[-1] if printed else error.how}")
    except ElementTree.ParseError as error:
        return Answer({}, f"Grid Engine's answer cannot be read: {error}")
    found = {job_id: listed.get(job_id) or _ended(job_id) for job_id in job_ids}
    return Answer({job_id: state for job_id, state in found.items() if state is not None})


def _parsed(xml: str, job_ids: Sequence[str]) -> dict[str, GridEngineState]:
    states = {}
    for job in ElementTree.fromstring(xml).iter("job_list"):
        job_id, native = job.findtext("JB_job_number", ""), job.findtext("state", "")
        if job_id not in job_ids:
            continue
        host = job.findtext("queue_name", "").partition("@")[2]
        reason = _reason(job_id) if "E" in native else ""
        states[job_id] = GridEngineState(job_id, native, reason, None, host)
    return states


def _reason(job_id: str) -> str:
    """Why a job could not be started, as `qstat -j` prints it."""
    printed = run(["qstat", "-j", job_id], timeout_s=ANSWER_S, check=False).stdout
    found = re.search(r"^error reason\s+\d+:\s*(.*)", printed, re.MULTILINE)
    return found[1].strip() if found else ""


def _ended(job_id: str) -> GridEngineState | None:
    """The end of a job; None if the accounting does not have it, or cannot be read here, or if the job was
    deleted while it waited for a restart: then the last record is of the start before."""
    try:
        printed = run(["qacct", "-j", job_id], timeout_s=ANSWER_S, check=False)
    except ClusterError:
        return None
    values = dict(re.findall(r"^(hostname|failed|exit_status)\s+(\S+)", printed.stdout, re.MULTILINE))
    if printed.code or "exit_status" not in values or values["failed"] == _RESCHEDULING:
        return None
    code, failed = int(values["exit_status"]), values["failed"]
    native = "out of time" if failed == "37" else "failed" if code or failed != "0" else "ended"
    return GridEngineState(job_id, native, restarts=None, nodes=values["hostname"], exit_code=code or None)
