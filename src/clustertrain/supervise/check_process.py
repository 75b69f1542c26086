"""The check of a job's code in a process of its own, under a guardian and with a deadline.

It imports torch and the user's code, which the process that starts it never does. Request and report are
files in a private folder that is removed at the end.
"""

from __future__ import annotations

import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from clustertrain.errors import EXIT_FAILED, RunStopped
from clustertrain.node.signals import handled_signals
from clustertrain.observe.terminal_text import TerminalText
from clustertrain.storage import open_store
from clustertrain.storage.location import Location
from clustertrain.storage.record_file import RecordFile
from clustertrain.supervise.private_folder import private_folder, remove
from clustertrain.supervise.process import Guarded

_POLL_S = 0.1


@dataclass(frozen=True)
class CheckRequest:
    """What to check.

    `elsewhere`: the job will run on other machines, which may have other packages, files, GPUs and more
    memory.
    """

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
        exit_code: the exit code of the error.
        of_this_machine: the error may not occur on the machines of the job.
        notes: what was left out, and why.
        printed: the lines of the user's code.
    """

    phase: str
    ended: bool = False
    error: str = ""
    exit_code: int = 0
    of_this_machine: bool = False
    notes: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)


class CheckFolder:
    """The files of one check. `scratch`: for data that the check unpacks."""

    def __init__(self, path: Path) -> None:
        self.path, store = path, open_store(Location(str(path)))
        self.request = RecordFile(store, "request", CheckRequest)
        self.report = RecordFile(store, "report", CheckReport)
        self.log, self.scratch = path / "log", path / "scratch"


def run_check(request: CheckRequest, environment: Mapping[str, str], deadline_s: float) -> CheckReport:
    """Run the check, and return its report.

    The report of a check that reached the deadline has `ended` False and no error; the report of a check that
    died has its signal and its last lines as the error.

    Raises:
        RunStopped: this process received SIGINT, SIGTERM or SIGHUP.
    """
    ends = time.monotonic() + deadline_s
    with handled_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) as signals:
        folder = CheckFolder(private_folder())

        def is_over() -> bool:
            return bool(signals) or time.monotonic() >= ends

        try:
            folder.request.write(request)
            report = _report_of(folder, environment, is_over)
            if signals:
                raise RunStopped("Stopped during the check of the code.", checkpointed=False)
            return report
        finally:
            remove(folder.path)


def _report_of(
    folder: CheckFolder, environment: Mapping[str, str], is_over: Callable[[], bool]
) -> CheckReport:
    command = [sys.executable, "-P", "-m", "clustertrain.worker.check", str(folder.path)]
    process = Guarded(command, folder.log, folder.scratch, environment)
    try:
        while process.code() is None and not is_over():
            select.select([process.fd], [], [], _POLL_S)
        has_ended = process.code() is not None
    finally:
        process.end()
    report = folder.report.read() or CheckReport("start")
    if report.ended or not has_ended:
        printed = TerminalText()
        return replace(report, printed=[*printed.feed(folder.log.read_bytes()), *printed.open])
    how = f"The check of the code {process.how_it_ended()}, in the {report.phase}. Its last lines:"
    text = f"{how}\n{process.last_lines() or '  | (it printed nothing)'}"
    return CheckReport(report.phase, True, text, EXIT_FAILED, of_this_machine=True)
