"""The driver under a guardian, and the result of a driver that died without writing one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.folder import Attempt
from clustertrain.run.records import Result
from clustertrain.run.result import ended, write_result
from clustertrain.supervise.process import Guarded


def start_driver(
    attempt: Attempt, folder: Path, environment: Mapping[str, str], *, shielded: bool = False
) -> Guarded:
    """Start the driver of an attempt; `folder` is removed when it has ended."""
    command = [sys.executable, "-m", "clustertrain.driver", AttemptRef.of(attempt).to_text()]
    return Guarded(command, attempt.driver_log, folder, environment, shielded=shielded)


def result_of(attempt: Attempt, driver: Guarded) -> Result:
    """The result that the driver wrote. If it died before that: a result with the cause `driver_died`."""
    result = attempt.result.read()
    if result is not None:
        return result
    text = f"The driver {driver.how_it_ended()} before it wrote a result. The end of {driver.log}:\n"
    return write_result(attempt, ended(attempt, "failed", "driver_died", text=text + driver.last_lines()))
