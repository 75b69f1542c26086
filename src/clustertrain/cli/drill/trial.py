"""One run of a drill to its end, on this machine or on a scheduler."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from clustertrain.api import JobStart
from clustertrain.cli.drill.left import RunFingerprint
from clustertrain.cli.drill.plan import DrillPlan
from clustertrain.errors import ClusterTrainError
from clustertrain.launchers import shell
from clustertrain.launchers.resolve_run import find
from clustertrain.launchers.target import silent
from clustertrain.observe.as_json import last_printed
from clustertrain.observe.screen import Screen
from clustertrain.run_files.folder.run_dir import RunDir

_READ_TIMEOUT_S = 900.0
HIDDEN_COMMAND = "drilled"


@dataclass(frozen=True)
class Trial:
    """A run of a drill. `left`: None if it failed, which `failure` explains."""

    uri: str
    left: RunFingerprint | None
    seconds: float
    failure: str = ""


def run_trial(plan: DrillPlan, name: str, fault: str) -> Trial:
    """Run the job with a fault to its end, and read what it left. One that stops is started again.

    Raises:
        ClusterTrainError: it was refused.
    """
    to = plan.to
    command = "run" if to == "local" else f"submit --to {to}"
    start = JobStart.of(command, plan.job_file, plan.sets(name, fault))
    began = time.monotonic()
    state, text = _to_its_end(start, to, is_first=True)
    if name == "stop" and state == "stopped":
        state, text = _to_its_end(start, to, is_first=False)
    seconds = time.monotonic() - began
    if state != "done":
        return Trial(start.run.target, None, seconds, f"it ended as {state}: {text}")
    return Trial(start.run.target, _read_left(start, to), seconds)


def _to_its_end(start: JobStart, to: str, *, is_first: bool) -> tuple[str, str]:
    if to == "local":
        of_drill_before = RunDir.newest(start.job.storage.location, start.job.name).newest_attempt()
        fresh = is_first and of_drill_before is not None
        _, result = start.run_here(Screen(silent), owns_process=False, fresh=fresh)
        if result.cause in ("interrupt", "terminated"):  # by the user of the drill
            raise KeyboardInterrupt
        return result.state, result.text
    start.submit(to, silent, fresh=is_first, no_check=True)
    try:
        status = start.run.wait()
    except KeyboardInterrupt:
        start.run.stop(wait=False)
        raise
    return status.state, status.text


def _read_left(start: JobStart, to: str) -> RunFingerprint:
    """Read what the run left.

    A process that imports torch reads it, or one in the cluster if only the cluster has the storage.
    """
    launcher, target = find(start.run.target, (), None if to == "local" else to, silent)
    if launcher.reach is not None:
        printed = "\n".join(launcher.reach.lines(target, [HIDDEN_COMMAND]))
    else:
        argv = [sys.executable, "-P", "-m", "clustertrain.cli", HIDDEN_COMMAND, start.run.target]
        printed = shell.run(argv, timeout_s=_READ_TIMEOUT_S).stdout
    if (left := last_printed(RunFingerprint, printed)) is not None:
        return left
    raise ClusterTrainError(
        f"What {start.job.name} left cannot be read: `{HIDDEN_COMMAND}` printed no result."
    )


def remove(trial: Trial) -> bool:
    """Remove the run. False if its storage is not a file system of this machine."""
    if "://" in trial.uri or not Path(trial.uri).is_dir():
        return False
    shutil.rmtree(trial.uri)
    return True
