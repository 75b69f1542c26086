"""The launcher of runs whose storage only a cluster has, which it reads through a Reach.

A connection that breaks is made again, and lines that were printed are not repeated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from clustertrain.errors import EXIT_FAILED, JobError
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.scheduler.interface import Scheduler
from clustertrain.launchers.scheduler.on_rank import host_and_argv
from clustertrain.launchers.scheduler.status import ask
from clustertrain.launchers.shell import Unanswered, attached
from clustertrain.launchers.target import Echo, NotThere, Reach, Target
from clustertrain.observe.as_json import json_line
from clustertrain.observe.columns import Columns
from clustertrain.observe.logs import LogSelection
from clustertrain.observe.run_table import Table, table_of
from clustertrain.observe.status_json import StoredStatus
from clustertrain.observe.tables import print_table
from clustertrain.observe.wait import continues, wait_for_end

_POLL_S = 5.0  # each look starts Python where the storage is, which takes about a second


class RemoteLauncher(Launcher):
    """A launcher whose cluster has the storage of the runs. `reach`: the way to it."""

    reach: Reach

    def __init__(self, name: str, scheduler: Scheduler, reach: Reach) -> None:
        self.reach = reach
        super().__init__(name, scheduler)

    def follow(self, target: Target, echo: Echo) -> int:
        """Print each change of state until the run and its job are over, then its status.

        Return the exit code of the run.
        """
        name, submitted = target.submitted_job.name, partial(self.reach.status, target, existed=True)
        with continues(name, target.command(f"submit --to {self.name}"), echo):
            # Who looks again may find nothing that reads the storage.
            passing = (Unanswered,)
            status = wait_for_end(name, submitted, echo, _POLL_S, passing=passing, sure_after=1)
        print_table(status.rows)
        return EXIT_FAILED if status.exit_code is None else status.exit_code

    def status(self, target: Target) -> StoredStatus:
        return self.reach.status(target)

    def stop(self, target: Target, echo: Echo, *, wait: bool) -> None:
        """Request that the run saves and ends, and cancel its job then; cancel a job that only waits at once.

        Args:
            wait: wait until the run has ended. If False, its job stays until its scheduler notices the end.

        Raises:
            JobError: the run is over, or has no job.
            ClusterError: the cluster refused a request.
        """
        status, job = self.reach.status(target), self.reach.sent(target)
        answer = ask(self.queue, [job])
        if status.over or (answer.no_answer is None and job.job_id not in answer.states):
            why = "its job is over" if status.over else "it has no job"
            raise JobError(f"{target.submitted_job.name}: {_line(status)}\nThere is nothing to stop: {why}.")
        if self._is_asked(target, status, echo, wait) and not wait:
            return
        self.scheduler.cancel(job)
        echo(f"{self.scheduler.label} job {job.job_id} is deleted; its storage stays")

    def ls(self, place: str | None, namespace: str | None, columns: Columns) -> Table:
        """Return the table of `ls --to`: the jobs in a namespace.

        Args:
            place: a job file, which names the cluster; None if none is given.

        Raises:
            JobError: `place` is no job file, or columns of the storage are asked for.
        """
        if columns.headers:
            raise JobError(
                f"--args and --metric: --to {self.name} lists jobs, without their storage.\n"
                "Use `clustertrain ls` without --to."
            )
        if place is not None and not Path(place).is_file():
            raise JobError(
                f"{place} is not a job file, and only a job file names the cluster.\nName the job file."
            )
        return table_of(self.reach.rows(place, namespace), (), columns)

    def _is_asked(self, target: Target, status: StoredStatus, echo: Echo, wait: bool) -> bool:
        """Request the stop where the run is, print its output, and return whether the stop was requested."""
        try:
            for line in self.reach.lines(target, ["stop", *([] if wait else ["--no-wait"])]):
                echo(line)
        except NotThere as error:
            echo(str(error).splitlines()[0])
        except JobError:
            no_attempt = f"{_line(status)}; there is nothing to save yet"
            echo(no_attempt if status.attempt is None else "it ended before the request")
        else:
            return True
        return False

    def exec(self, target: Target, rank: int, command: Sequence[str]) -> int:
        """Run a command where a rank runs, with this terminal, and return its exit code.

        Raises:
            JobError: the run is not running, or has no such rank.
            ClusterError: nothing runs where the rank was, or the cluster refused a request.
        """
        name, status = target.submitted_job.name, self.reach.status(target)
        if status.over:
            raise JobError(f"{name} is not running: {_line(status)}\nStart it again.")
        host, argv = host_and_argv(status.ranks, rank, name, command)
        return attached(self.reach.command_on(target, host, argv))

    def logs(self, target: Target, selection: LogSelection, *, follow: bool) -> Iterator[str]:
        """Yield the log lines, oldest first.

        With `follow` they continue until the run is over, through every attempt unless one was selected.
        Before the first attempt, and if the storage cannot be read, they are the state of the run with its
        notes, and what its job printed.

        Raises:
            JobError: there is no such attempt or log.
            ClusterError: the cluster refused a request.
        """
        told: Callable[[str], str] = json_line if selection.as_json else str  # those of a pod are objects
        shown, printed = _Shown(told), ""
        while True:
            try:
                status = self.reach.status(target, existed=True)
            except Unanswered as error:
                if not follow:
                    raise
                if (line := f"warning: {str(error).splitlines()[0]}") != printed:
                    yield told(line)
                printed = line
                time.sleep(_POLL_S)
                continue
            attempt = status.attempt if selection.attempt is None else selection.attempt
            if attempt is not None and attempt > shown.complete:
                flags = _flags(selection, attempt, follow=follow and not status.over)
                yield from shown.more(attempt, self.reach.lines(target, ["logs", *flags]))
                if selection.attempt is not None and shown.complete:
                    return
                if follow:  # the status is older than these lines
                    if shown.complete < attempt:
                        time.sleep(_POLL_S)
                    continue
            is_shown = attempt is not None and (status.of_result or status.state in ("staging", "running"))
            line = status.standing.name if is_shown else status.standing.line
            if line != printed and (not is_shown or (follow and status.over)):
                printed = line
                yield told(printed)
                if attempt is None:
                    yield from (told(f"note: {text}") for row, text in status.rows if row == "note")
                    yield from map(told, self.reach.first_lines(target))
            if status.over or (not follow and attempt in (None, shown.complete)):
                return
            time.sleep(_POLL_S)


def _line(status: StoredStatus) -> str:
    return status.standing.line.splitlines()[0]


@dataclass
class _Shown:
    """The last attempt that was printed completely, and how often each line of each attempt was printed.

    When the log is read again, its lines differ: the earlier states of a progress bar are missing, and the
    lines of several ranks come in another order.
    """

    told: Callable[[str], str]
    complete: int = 0
    printed: dict[int, Counter[int]] = field(default_factory=dict)  # by the hash of the line

    def more(self, attempt: int, lines: Iterator[str]) -> Iterator[str]:
        printed, seen = self.printed.setdefault(attempt, Counter()), Counter[int]()
        try:
            for line in lines:
                seen[hash(line)] += 1
                if seen[hash(line)] > printed[hash(line)]:
                    printed[hash(line)] += 1
                    yield line
        except (NotThere, Unanswered) as broken:
            yield self.told(f"-- {str(broken).splitlines()[0]}; reconnecting")
        else:
            self.complete = attempt


def _flags(selection: LogSelection, attempt: int, *, follow: bool) -> list[str]:
    values = {"--attempt": attempt, "--rank": selection.rank, "--node": selection.node}
    flags = [word for flag, value in values.items() if value is not None for word in (flag, str(value))]
    chosen = {"--driver": selection.driver, "--json": selection.as_json, "--follow": follow}
    return [*flags, *(flag for flag, is_set in chosen.items() if is_set)]
