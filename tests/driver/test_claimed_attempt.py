"""The attempt of a driver that starts before its claim."""

import sys

import pytest

from clustertrain.errors import EXIT_DRIVER_FAILED
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.supervise.early_driver import AttemptToCome, StartFolder
from commands import ran

WAITING = """
import sys
from clustertrain.driver.claimed_attempt import ClaimedAttempt
claimed = ClaimedAttempt(sys.argv[1])
claimed.begin()
claimed.attempt()
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "start"
    folder.mkdir()
    StartFolder(folder).log.touch()
    return folder


def test_a_driver_that_cannot_begin_its_attempt_ends(attempt, folder):
    """It would wait for the attempt for ever, and the run with it."""
    start = StartFolder(folder)
    start.to_come.write(AttemptToCome("", "local", 1))
    attempt.driver_log.parent.parent.mkdir(parents=True, exist_ok=True)
    attempt.driver_log.parent.touch()  # no folder
    start.claimed.write(AttemptRef.of(attempt))
    done = ran([sys.executable, "-c", WAITING, str(folder)], code=EXIT_DRIVER_FAILED, timeout=60)
    assert "FileExistsError" in done.stderr
