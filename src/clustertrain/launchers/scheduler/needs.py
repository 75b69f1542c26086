"""What a job needs on its hosts, computed once for all schedulers, and the last lines of its script."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING

from clustertrain.errors import JobError
from clustertrain.node import variables
from clustertrain.node.units import duration_text

if TYPE_CHECKING:  # the model of a job needs the plug-ins, which import this file
    from clustertrain.run_files.admission import Options


@dataclass(frozen=True)
class Needs:
    """What a job needs on each of its hosts, and what it gets.

    Attributes:
        job_file: its path as it was given; a relative one starts at the folder of the submission.
        hosts: how many it needs; the most, if it may train on fewer.
        cpus, gpus: on each host.
        memory_bytes: on each host, with Ray and the driver; None if the job does not say.
        lead_time: returns `lead_s`, for which it reads what the run's last attempts have left.
        variables: the names of the variables that the job gets: the submission, and those that the job file
            refers to.
        options: of the start, for a scheduler whose script has the code.
    """

    launcher: str
    job_file: str
    hosts: int
    cpus: int
    gpus: int
    memory_bytes: int | None
    lead_time: Callable[[], float]
    variables: tuple[str, ...]
    options: Options

    @cached_property
    def lead_s(self) -> float:
        """The seconds that a last save needs before the end of the job's time."""
        return self.lead_time()

    def program(
        self,
        job_id: str,
        *,
        start: str = "",
        python: str | None = None,
        signal: str = "",
        warned_after_s: float | None = None,
        restart_code: int | None = None,
        restarts_on_term: bool = False,
        hosts: str = "",
        on: str = "",
    ) -> str:
        """Return the last lines of a script of bash: the program of the job.

        It starts in the folder of the submission. Its exit code is that of `clustertrain run`.

        Args:
            job_id: the shell's words for the ID, such as `"$JOB_ID"`.
            start: the shell's words for the mark of this start, as `State.start` has it.
            python: on the host; the default is that of this command.
            signal: the scheduler sends it before the end of the job's time: `USR1`.
            warned_after_s: the seconds after which a last save begins, of a scheduler that sends no signal.
                With a signal: after them every other signal means the end of the time, too.
            restart_code: the exit code after which the scheduler starts the job again.
            restarts_on_term: the scheduler starts a job again that it has ended with SIGTERM.
            hosts: the shell's words for the hosts of a job of several, separated by commas.
            on: the words that run a command on one of them, such as `ssh {host}`, with its standard input
                and exit code; `{host}` is its name. They are not for the shell.

        Raises:
            TypeError: `on` does not have the name of the host.
            JobError: no time is left for a last save.
        """
        if hosts and "{host}" not in on:
            raise TypeError(f"on is {on!r}, without {{host}}")
        if warned_after_s is not None and warned_after_s <= 0:
            raise JobError(
                "The time limit of the job leaves no time before a last save of "
                f"{duration_text(self.lead_s)}.\nSet a longer one."
            )
        flags = {
            "--start": start,
            "--at-time-limit": signal,
            "--warned-after": "" if warned_after_s is None else str(math.floor(warned_after_s)),
            "--restart-code": "" if restart_code is None else str(restart_code),
        }
        flags |= {"--hosts": hosts, "--on": quote(on)} if hosts else {}
        words = [quote(python or sys.executable), "-m clustertrain.launchers.scheduler.start", self.launcher]
        words += [f"{flag} {value}" for flag, value in flags.items() if value]
        words += ["--restarts-on-term"] if restarts_on_term else []
        words += [job_id, f'"${{{variables.SUBMISSION}:-$job}}"']
        lines = (
            # Some schedulers set a variable to an empty text if it is not set.
            *(f'[ "${name}" ] || unset {name}' for name in self.variables if name != variables.SUBMISSION),
            f"job={quote(self.job_file)}",
            f"exec {' '.join(words)}",
            "",
        )
        return "\n".join(lines)
