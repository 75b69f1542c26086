"""The check of a job's code in a process of its own, under a guardian and with a deadline.

It imports torch and the user's code, which the process that starts it never does. Request and report are
files in a private folder that is removed at the end.
"""

from __future__ import annotations

import json
import select
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clustertrain.errors import EXIT_FAILED, RunStopped
from clustertrain.node.signals import handled_signals
from clustertrain.supervise.private_folder import private_folder, remove
from clustertrain.supervise.process import Guarded

_POLL_S = 0.1
_REQUEST, _REPORT, _LOG, _SCRATCH = "request", "report", "log", "scratch"


@dataclass(frozen=True)
class CheckRequest:
    """What to check. `elsewhere`: the job will run on other machines, which may have other packages, files,
    GPUs and more memory."""

    job_yaml: str
    world_size: int
    elsewhere: bool


@dataclass(frozen=True)
class CheckReport:
    """What the check found.

    Attributes:
        phase: the step that it is in, or was in at its end.
        ended: whether it ran to its end, with or without an error.
        error: the message; "" without an error.
        exit_code: that of the error.
        at: the keys of the job file that the error is about.
        of_this_machine: the error may not occur on the machines of the job.
        notes: what was left out, and why.
    """

    phase: str
    ended: bool = False
    error: str = ""
    exit_code: int = 0
    at: list[str] = field(default_factory=list)
    of_this_machine: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CheckFolder:
    """The files of one check."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / _LOG

    @property
    def scratch(self) -> Path:
        """For data that the check unpacks."""
        return self.path / _SCRATCH

    def write_request(self, request: CheckRequest) -> None:
        (self.path / _REQUEST).write_text(json.dumps(asdict(request)))

    def request(self) -> CheckRequest:
        return CheckRequest(**json.loads((self.path / _REQUEST).read_text()))

    def write_report(self, report: CheckReport) -> None:
        """One rename, because the process may be killed while it writes."""
        part = self.path / f"{_REPORT}.part"
        part.write_text(json.dumps(asdict(report)))
        part.rename(self.path / _REPORT)

    def report(self) -> CheckReport:
        path = self.path / _REPORT
        return CheckReport(**json.loads(path.read_text())) if path.exists() else CheckReport("start")


def run_check(request: CheckRequest, environment: Mapping[str, str], deadline_s: float) -> CheckReport:
    """Run the check. The report of a check that reached the deadline has `ended` False and no error; that of
    a check that died has its signal and its last lines as the error.

    Raises:
        RunStopped: this process received SIGINT, SIGTERM or SIGHUP.
    """
    folder = CheckFolder(private_folder())
    with handled_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) as signals:
        try:
            folder.write_request(request)
            command = [sys.executable, "-m", "clustertrain.worker.check", str(folder.path)]
            process = Guarded(command, folder.log, folder.scratch, environment)
            try:
                ends = time.monotonic() + deadline_s
                while process.code() is None and not signals.numbers and time.monotonic() < ends:
                    select.select([process.fd], [], [], _POLL_S)
                has_ended = process.code() is not None
            finally:
                process.end()
            if signals.numbers:
                raise RunStopped("Stopped during the check of the code.", checkpointed=False)
            report = folder.report()
            if report.ended or not has_ended:
                return report
            how = f"The check of the code {process.how_it_ended()}, in the {report.phase}. Its last lines:"
            text = f"{how}\n{process.last_lines() or '  | (it printed nothing)'}"
            return CheckReport(report.phase, True, text, EXIT_FAILED, of_this_machine=True)
        finally:
            remove(folder.path)
