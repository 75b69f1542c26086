"""The interface of a scheduler: what a new one implements.

    script ─▶ submit ─▶ query … cancel

The commands of clustertrain (launchers/launcher.py) are shared code over these four operations. Authors
import the names of this module from `clustertrain.launcher`.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from clustertrain.errors import ClusterError
from clustertrain.launchers.scheduler.needs import Needs

if TYPE_CHECKING:  # the model of a job needs the plug-ins, which import this file
    from clustertrain.job.site import SiteJob

Phase = Literal["waits", "held", "suspended", "starts", "runs", "ends", "ended", "cancelled", "timed out"]


@dataclass(frozen=True)
class Sent:
    """A job that a scheduler has accepted.

    Attributes:
        job_id: the scheduler's ID.
        output: the file that the scheduler writes, or the command that prints it; empty if unknown.
        printed: lines for the user.
        place: where the job is, such as the cluster; it comes back to `query`, `cancel` and `command_on`.
    """

    job_id: str
    output: str = ""
    printed: Sequence[str] = ()
    place: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The state of one job in a scheduler.

    Attributes:
        word: the scheduler's own word.
        phase: `waits`, `held`: in the queue; `starts`: has hosts, which are not ready yet; `suspended`;
            `runs`; `ends`: the scheduler ends its last processes; `ended`, `cancelled`, `timed out`: over.
        why: the scheduler's reason; empty if there is none.
        hosts: as the scheduler writes them; empty before it has some.
        code: the exit code of the script of a job that is over; None if it is not known.
        start: a mark of the present start, compared only with the one that `Needs.program` recorded; empty if
            the scheduler does not tell.
        starts_at: the expected start of a job that waits, in seconds since 1970.
        goes_on: whether the same job starts again after an attempt that was preempted, without waiting.
        rows: what `status` prints beside it, by the name of the row.

    Raises:
        TypeError: the phase is none of these.
    """

    word: str
    phase: Phase
    why: str = ""
    hosts: str = ""
    code: int | None = None
    start: str = ""
    starts_at: float | None = None
    goes_on: bool = False
    rows: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.phase not in get_args(Phase):
            phases = ", ".join(get_args(Phase))
            raise TypeError(f"State.phase is {self.phase!r}, and the phases are {phases}")

    @property
    def is_waiting(self) -> bool:
        return self.phase in ("waits", "held")

    @property
    def is_over(self) -> bool:
        return self.phase in ("ended", "cancelled", "timed out")

    @property
    def text(self) -> str:
        """The word and its reason, such as "PENDING (Priority)"."""
        return f"{self.word} ({self.why})" if self.why else self.word


class Scheduler(ABC):
    """A scheduler of a cluster.

    Attributes:
        label: how messages name it.
        max_hosts: the most hosts of a job. With more than 1, its script names the hosts (`Needs.program`).
        runs_here: whether its jobs are processes of this machine; of schedulers of a cluster none is.
    """

    label: ClassVar[str]
    max_hosts: ClassVar[float] = 1
    runs_here: ClassVar[bool] = False

    @abstractmethod
    def script(self, job: SiteJob, needs: Needs) -> str:
        """Return the text that `render` prints and `submit` sends.

        It changes nothing and asks nobody: the same job gives the same text.

        Raises:
            JobError: the job cannot run there.
        """

    @abstractmethod
    def submit(self, job: SiteJob, script: str, environment: Mapping[str, str]) -> Sent:
        """Send the script.

        Args:
            environment: the variables that the job gets, with their values.

        Raises:
            ClusterError: the scheduler does not answer, or refuses the job. An attribute `job_id` of the
                error says that it has accepted the job.
        """

    @abstractmethod
    def query(self, jobs: Sequence[Sent]) -> Mapping[str, State]:
        """Return the states of those jobs that the scheduler knows, by ID, with one query for all.

        All of `jobs` have the same place.

        Raises:
            ClusterError: it does not answer; the first line says why.
        """

    @abstractmethod
    def cancel(self, job: Sent) -> None:
        """Cancel a job; no effect if it has ended.

        Raises:
            ClusterError: the scheduler does not answer, or the job belongs to another user.
        """

    def check(self, job: SiteJob, script: str) -> Iterable[str]:
        """Check the job on this machine and against the cluster, and return what a user should know.

        Raises:
            Unanswered: the scheduler does not answer.
            ClusterError: it could never start the job.
            StorageError: a folder of the job cannot be written.
        """
        return ()

    def cancel_waiting(self, job: Sent) -> None:
        """Cancel a job unless it has started; raise as `cancel`."""
        state = self.query([job]).get(job.job_id)
        if state is None or state.is_waiting:
            self.cancel(job)

    def command_on(self, job: Sent, host: str, command: Sequence[str]) -> Sequence[str]:
        """Return the arguments that run a command on a host of a running job, with its exit code.

        Raises:
            ClusterError: this machine cannot reach the host.
        """
        return here(host, command)


def here(host: str, command: Sequence[str]) -> Sequence[str]:
    """Return the command, if this machine is the host.

    Raises:
        ClusterError: it is not.
    """
    if host == socket.gethostname():
        return command
    raise ClusterError(f"The rank is on {host}, and this is {socket.gethostname()}.\nLog in there.")


def start_text(estimate: float | None) -> str:
    """Return the time of an expected start, in local time; empty if it is unknown, or over."""
    now = time.time()
    if estimate is None or estimate <= now:
        return ""
    starts = time.localtime(estimate)
    is_today = starts[:3] == time.localtime(now)[:3]
    return time.strftime("about %H:%M" if is_today else "about %Y-%m-%d %H:%M", starts)
