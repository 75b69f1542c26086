"""The attempt of a driver that starts before its claim."""

import os
import sys

import pytest

from clustertrain import variables
from clustertrain.errors import EXIT_DRIVER_FAILED, EXIT_RAY_ENDED
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


RAY_HANGS = """
import sys, time
from types import SimpleNamespace
from clustertrain.driver import __main__ as driver
from clustertrain.driver.ray_cluster import Deadline
driver._MARGIN_S = 0.0
cluster = SimpleNamespace(name="Ray", deadline=Deadline(0.2, "failures.ray_start"))
with driver._Run(driver.ClaimedAttempt(sys.argv[1]), None, cluster, (1,)).ending_without_answer():
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "start"
    folder.mkdir()
    StartFolder(folder).log.touch()
    return folder


@pytest.mark.slow
def test_a_spare_driver_whose_ray_does_not_answer_ends_without_an_attempt(folder):
    StartFolder(folder).to_come.write(AttemptToCome("", "local", 1, is_spare=True))
    done = ran([sys.executable, "-c", RAY_HANGS, str(folder)], code=EXIT_RAY_ENDED, timeout=200)
    assert "Ray has not answered within 0.2 s (failures.ray_start)" in done.stdout


@pytest.mark.slow
def test_a_run_that_has_taken_a_spare_driver_that_cannot_start_gets_another(folder, tmp_path):
    """The run is in its check meanwhile."""
    job_yaml = f"name: a\nfunction: m:f\ncode: {tmp_path}/not-here\n"
    StartFolder(folder).to_come.write(AttemptToCome(job_yaml, "local", 1, is_spare=True))
    environment = {**os.environ, variables.ENV: "{}", variables.RAY_DIR: str(folder)}
    command = [sys.executable, "-m", "clustertrain.driver", str(folder)]
    done = ran(command, code=EXIT_RAY_ENDED, timeout=200, env=environment)
    assert "not-here" in done.stderr


def test_a_driver_that_cannot_begin_its_attempt_ends(attempt, folder):
    """It would wait for the attempt for ever, and the run with it."""
    start = StartFolder(folder)
    start.to_come.write(AttemptToCome("", "local", 1))
    attempt.driver_log.parent.parent.mkdir(parents=True, exist_ok=True)
    attempt.driver_log.parent.touch()  # no folder
    start.claimed.write(AttemptRef.of(attempt))
    done = ran([sys.executable, "-c", WAITING, str(folder)], code=EXIT_DRIVER_FAILED, timeout=60)
    assert "FileExistsError" in done.stderr
