"""The interface of a scheduler: what a new one implements.

    plan ─▶ preflight ─▶ submit ─▶ states … cancel

The commands of clustertrain (launcher.py) are shared code over these operations.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from clustertrain.errors import JobError
from clustertrain.job.site import SiteJob
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine
from clustertrain.run.records import SchedulerStart
from clustertrain.run.states import STATES


@dataclass(frozen=True)
class Plan:
    """What a submission sends: the command, and the script for its standard input.

    Attributes:
        lead_s: seconds between the scheduler's warning and the end of the job's time.
        own_output: a regular expression for the names of the files that the scheduler writes for the job,
            which are no code.
        notes: what a user should know of it.
        objects: what it creates, by kind and name, if that is not one job.
        waits_for_another: whether the job waits for another one: its run may be active at the submission.
    """

    script: bytes
    argv: tuple[str, ...]
    lead_s: float = 0.0
    own_output: str | None = None
    notes: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    waits_for_another: bool = False


@dataclass(frozen=True)
class Handle:
    """A job that a scheduler has accepted.

    Attributes:
        output: the file that the scheduler writes, or the command that prints it; empty if unknown.
        printed: what the scheduler or a plugin of the site printed for the user.
        storage: the storage of the run as the cluster names it; empty if that is its name here.
        namespace: of the job, in a cluster that has namespaces; empty for the default.
        context: the entry of the configuration of the cluster's client; empty for the default.
    """

    job_id: str
    cluster: str | None = None
    output: str = ""
    printed: tuple[str, ...] = ()
    storage: str = ""
    namespace: str = ""
    context: str = ""


@dataclass(frozen=True)
class Meaning:
    """The meaning of a scheduler's state for a run without a result: a state and a cause of states.STATES.

    `phase`: `ending` while the scheduler ends the last processes of the job; `succeeded` or `failed` if the
    job is over and its script ended with 0, or with another code.
    """

    state: str
    cause: str
    text: str
    phase: str = ""


def start_text(estimate: float | None) -> str:
    """Return the time of an expected start, in local time; empty if it is unknown, or over."""
    now = time.time()
    if estimate is None or estimate <= now:
        return ""
    starts = time.localtime(estimate)
    is_today = starts[:3] == time.localtime(now)[:3]
    return time.strftime("about %H:%M" if is_today else "about %Y-%m-%d %H:%M", starts)


def ordinal(number: int) -> str:
    """Return a number as 1st, 2nd, 3rd or 11th."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}th" if number % 100 in (11, 12, 13) else f"{number}{ending}"


@dataclass(frozen=True)
class JobState:
    """The state of one job in a scheduler.

    Attributes:
        native: the scheduler's own state, a key of `meanings`.
        reason: the scheduler's reason for the wait or the end, and what it means; empty if there is none.
        restarts: how often the scheduler has started the job again; None if it does not tell.
        nodes: the nodes of the job, as the scheduler writes them; empty before it has some.
        time_left: as the scheduler writes it; empty if it does not.
        submitted_at: the time of the submission or the last requeue, in seconds since 1970; None if unknown.
        start_estimate: the expected start of a job that waits, in seconds since 1970; None if unknown.
        position: of a job that waits, in words: "3rd in its partition's queue"; empty if unknown.
        exit_code: the nonzero exit code of the job's script; None if there is none.

    A scheduler changes:
        again: how a job is called that waits after an attempt.
        stays: whether a job whose attempt was preempted keeps its nodes, or gets others without waiting.
    """

    meanings: ClassVar[Mapping[str, Meaning]] = {}
    again: ClassVar[str] = "requeued after attempt"
    stays: ClassVar[bool] = False

    job_id: str
    native: str
    reason: str = ""
    restarts: int | None = 0
    nodes: str = ""
    time_left: str = ""
    cluster: str = ""
    submitted_at: float | None = None
    start_estimate: float | None = None
    position: str = ""
    exit_code: int | None = None

    @property
    def meaning(self) -> Meaning:
        """The meaning of `native`.

        An unknown state counts as running; then the heartbeat and the result show the rest.
        """
        return self.meanings.get(self.native) or Meaning("running", "training", f"is {self.native}")

    @property
    def is_waiting(self) -> bool:
        return self.meaning.state == "queued"

    @property
    def is_over(self) -> bool:
        return STATES[self.meaning.state].final

    @property
    def is_cancelled(self) -> bool:
        return self.meaning.state == "cancelled"

    @property
    def has_nodes(self) -> bool:
        return not self.is_waiting and not self.is_over

    @property
    def text(self) -> str:
        """The state and its reason, such as "PENDING (Priority)"."""
        is_stale = self.is_cancelled  # a cancelled job may keep the reason of its wait
        return f"{self.native} ({self.reason})" if self.reason and not is_stale else self.native

    @property
    def starts(self) -> str:
        """When a waiting job is expected to start, in local time, and its position; empty if unknown."""
        expected = start_text(self.start_estimate) if self.is_waiting else ""
        return ", ".join(filter(None, [expected, self.position]))

    @property
    def why_it_waits(self) -> str:
        return self.text

    @property
    def before_its_attempt(self) -> Meaning:
        """The meaning of a job that has nodes and has not begun an attempt."""
        return Meaning("waiting", "nodes", "started; its nodes are not ready yet")

    @property
    def trouble(self) -> str:
        """Why a job with nodes does not train, or not for long; empty if nothing is known."""
        if self.meaning.phase != "ending" and self.meaning.state != "waiting":
            return ""
        return f"the job {self.meaning.text}"

    def end_of(self, job_text: str) -> str:
        """Return how the job ended, in words; `job_text` names it."""
        return f"{job_text} {self.meaning.text}"


@dataclass(frozen=True)
class Answer:
    """A scheduler's answer about some jobs.

    Attributes:
        jobs: those that it knows, by ID.
        no_answer: the reason if it did not answer; None if it did.
        cluster: the name of this machine's cluster; may be omitted if `jobs` has all of the jobs.
    """

    jobs: Mapping[str, JobState]
    no_answer: str | None = None
    cluster: str | None = None


class Scheduler(ABC):
    """A scheduler of a cluster.

    Attributes:
        name: of the launcher.
        label: how messages name it.
        submit_program: the program that takes the script; empty if nobody can send the script by hand.
        after_another: how a job is submitted that starts after another one of its run; empty if it cannot be.
        job_word: how it calls a job.
        reads_storage: whether this machine reads the storage of its runs, and sends the code through it.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    submit_program: ClassVar[str] = ""
    after_another: ClassVar[str] = ""
    job_word: ClassVar[str] = "job"
    reads_storage: ClassVar[bool] = True

    @property
    def is_elsewhere(self) -> bool:
        """Whether its jobs run on other machines: then what is missing on this one is no error."""
        return True

    def cluster_text(self, handle: Handle) -> str:
        """Name the cluster of a job; empty for this machine."""
        return f"{self.label} cluster {handle.cluster}" if handle.cluster else self.label

    @abstractmethod
    def plan(self, job: SiteJob, options: Options) -> Plan:
        """Plan a submission.

        Planning changes nothing and asks no scheduler: the same job gives the same plan.

        Args:
            options: of the start; its `command` names the job file as it was given, a relative path from the
                current folder.

        Raises:
            JobError: the job cannot run there.
        """

    def preflight(self, job: SiteJob, plan: Plan, command: CommandLine) -> Iterable[str]:
        """Check the plan on this machine and against the cluster, and return what a user should know.

        Raises:
            ClusterError: the scheduler does not answer, or could never start the job.
            StorageError: a folder of the job cannot be written.
        """
        return ()

    @abstractmethod
    def submit(self, job: SiteJob, plan: Plan, submission: str, command: CommandLine) -> Handle:
        """Send the plan; the job gets `submission` as $CLUSTERTRAIN_SUBMISSION.

        Raises:
            ClusterError: the scheduler does not answer, or refuses the job.
        """

    def first_word(self, job: SiteJob) -> str:
        """Return the cluster's first report on a job that it has just accepted; empty if its state has it.

        Raises:
            JobError: it says that it will never run the job.
        """
        return ""

    @abstractmethod
    def states(self, jobs: Sequence[Handle]) -> Answer:
        """Return the states of jobs, with one query for all.

        No error is raised: `Answer.no_answer` contains it.
        """

    def pinned(self, job: SiteJob, handle: Handle) -> SiteJob:
        """Return the job with the place of what was submitted, if the user's own settings chose it.

        Later commands ask there, whatever these settings are by then.
        """
        return job

    def located(self, job: JobState) -> JobState:
        """Return the state of a job that waits, with its position in the queue, if the scheduler can tell."""
        return job

    def argv_on(self, start: SchedulerStart | None, host: str, command: Sequence[str]) -> Sequence[str]:
        """Return the arguments that run a command on a node of a running job.

        Their exit code is the exit code of the command.

        Args:
            start: the start of the job, as its run recorded it; None for a run that no job started.
            host: the name of the node as its ranks know it.

        Raises:
            JobError: the scheduler has no such way.
            ClusterError: this machine cannot reach the node.
        """
        raise JobError(f"exec: the launcher {self.name} has no way to the nodes of a job.\nLog in to {host}.")

    @abstractmethod
    def cancel(self, job: Handle, *, only_waiting: bool = False) -> None:
        """Cancel a job; no effect if it has ended or, with `only_waiting`, if it has started.

        Raises:
            ClusterError: the scheduler does not answer, or the job belongs to another user.
        """
