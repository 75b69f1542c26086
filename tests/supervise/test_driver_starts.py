"""What follows when a driver ends without a result: another start, counted like any restart, or the end."""

import os
import select
import sys

import pytest

from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.errors import EXIT_DRIVER_FAILED, EXIT_RAY_ENDED
from clustertrain.job.file import parse_job
from clustertrain.observe.event_lines import line_of
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.claim import ResumePoint
from clustertrain.run_files.records.requests import StopRequest
from clustertrain.run_files.records.result import Outcome
from clustertrain.run_files.retry_budget import RetryBudget
from clustertrain.run_files.streams.events import read_events
from clustertrain.supervise.driver_process import DriverStarts
from clustertrain.supervise.process import Guarded
from support.cgroups import WITHIN, memory_cgroup
from support.commands import ran
from support.sample_records import sample_claim, sample_failure, sample_restart_claim

KILLED = "kill -9 $$"


@pytest.fixture
def attempt(tmp_path):
    attempt = RunDir.newest(str(tmp_path / "runs"), "digits").attempt(1)
    attempt.claim.create(sample_claim(world_size=1))
    record_job(attempt, parse_job("name: digits\nfunction: m:f\nfailures: {retries: 2}\n", "job.yaml"))
    return attempt


@pytest.fixture
def ends(attempt, tmp_path):
    """A start of a driver that is this shell command; returns the result of the attempt, or None."""
    running = []

    def start_one():
        (tmp_path / "private").mkdir()
        return Guarded(running, attempt.driver_log, tmp_path / "private", os.environ)

    starts = DriverStarts(attempt, start_one)

    def run(shell):
        running[:] = ["sh", "-c", shell]
        driver = starts.start()
        assert select.select([driver.fd], [], [], 120)[0]
        driver.end()
        return starts.result_after(driver)

    return run


def lines(attempt):
    return [line_of(event) for event in read_events(attempt.run, attempt.key_of(attempt.launcher_events))]


def test_a_killed_driver_is_started_again_until_the_retries_are_used_up(attempt, ends):
    assert ends(KILLED) is None
    assert ends(KILLED) is None
    result = ends(f"echo lost; {KILLED}")
    assert (result.state, result.cause, result.exit_code) == ("failed", "retries_used_up", 1)
    assert result.text.startswith("The driver was killed by signal 9 before it wrote a result. The end of")
    assert "  | lost\n" in result.text
    assert "All 2 restarts in a row without a new committed step are used up" in result.text
    assert lines(attempt) == [
        "the driver was killed by signal 9\n"
        f"restarting the driver and the workers ({n} of at most 2 in a row without a new checkpoint)"
        for n in (1, 2)
    ]


SUPERVISOR = """
import os, select, sys
from pathlib import Path
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.supervise.driver_process import DriverStarts
from clustertrain.supervise.process import Guarded
attempt = RunDir.newest(sys.argv[1], "digits").attempt(1)
private = Path(sys.argv[1], "private")
private.mkdir()
hungry = [sys.executable, "-c", "x = b'x' * (1 << 30)"]
starts = DriverStarts(attempt, lambda: Guarded(hungry, attempt.driver_log, private, os.environ))
driver = starts.start()
select.select([driver.fd], [], [])
driver.end()
result = starts.result_after(driver)
print(result.state, result.cause, result.text, sep="\\n")
"""


@pytest.mark.slow
def test_a_driver_that_the_kernel_killed_for_memory_is_not_started_again(attempt, tmp_path):
    with memory_cgroup(400 << 20) as cgroup:
        script = [sys.executable, "-c", SUPERVISOR, str(tmp_path / "runs")]
        command = [*WITHIN, str(cgroup / "cgroup.procs"), *script]
        printed = ran(command, timeout=120)
    state, cause, what, remedy, changed = printed.stdout.splitlines()
    assert (state, cause) == ("failed", "out_of_memory"), printed.stderr
    killed = "The driver was killed by the kernel: its cgroup"
    assert what.startswith(f"{killed} {cgroup} allows 400.0 MiB of memory (memory.")
    assert "oom_kill: 0 → 1" in what
    assert remedy.startswith("An unchanged run would fail again.")
    assert changed.endswith("--accept-changes.")
    assert attempt.newest_restart() is None


def test_a_failed_start_of_the_workers_and_a_killed_driver_count_together(attempt, ends):
    def fails(number):
        attempt.restart(number).claim.create(sample_restart_claim())
        attempt.restart(number).plan.write(ResumePoint(None, 0, 1))
        attempt.restart(number).failure.write(sample_failure(restart=number))

    fails(0)
    assert ends(KILLED) is None, "it died before it claimed the next start, which counts"
    assert attempt.newest_restart().number == 1
    assert RetryBudget.of(attempt, retries=2).in_a_row == 2
    fails(2)
    assert ends(KILLED).cause == "retries_used_up"


def test_the_start_under_way_is_the_one_that_failed(attempt, ends):
    folder = attempt.path / "restarts" / "0"
    assert ends(f"mkdir -p {folder}; {KILLED}") is None
    assert attempt.newest_restart().number == 0


def test_a_new_checkpoint_renews_the_count(attempt):
    for number, step in enumerate((0, 0, 5, 5)):
        attempt.restart(number).claim.create(sample_restart_claim())
        if number != 1:  # this one died before it had a plan
            attempt.restart(number).plan.write(ResumePoint(None, step, 1))
    for step, in_a_row in ((5, 4), (10, 1)):
        folder = attempt.run.local_path(attempt.run.checkpoints.key) / str(CheckpointName(step, 1, 0))
        folder.mkdir(parents=True)
        (folder / "MANIFEST.json").touch()
        assert RetryBudget.of(attempt, retries=2).in_a_row == in_a_row


def test_a_start_that_returned_for_a_larger_one_is_no_failure(attempt):
    for number in (0, 1, 2):
        attempt.restart(number).claim.create(sample_restart_claim())
        attempt.restart(number).plan.write(ResumePoint(None, 0, 1))
    assert RetryBudget.of(attempt, retries=2).in_a_row == 3
    attempt.restart(1).outcome.write(Outcome(False, 5))
    assert RetryBudget.of(attempt, retries=2).in_a_row == 1


def test_a_driver_that_dies_after_the_end_of_training_counts(attempt):
    """It would be started again without end, if it always died there."""
    for number in (0, 1):
        attempt.restart(number).claim.create(sample_restart_claim())
        attempt.restart(number).plan.write(ResumePoint(None, 0, 1))
        attempt.restart(number).outcome.write(Outcome(True, 5))
    assert RetryBudget.of(attempt, retries=2).in_a_row == 2


def test_the_end_of_ray_is_named(attempt, ends):
    said = 'echo "clustertrain: Ray\'s raylet (pid 7) was killed by signal 9 (SIGKILL)"; echo more'
    assert ends(f"{said}; exit {EXIT_RAY_ENDED}") is None
    assert lines(attempt)[0].startswith("Ray's raylet (pid 7) was killed by signal 9 (SIGKILL)\nrestarting")


def test_a_driver_that_ray_itself_ended_is_started_again(attempt, ends):
    """Ray's code in the driver may notice the end of its raylet before ray_watch.py."""
    assert ends("exit 1") is None
    assert lines(attempt)[0].startswith("the driver ended with code 1\nrestarting the driver and the workers")


def test_an_error_of_the_driver_would_occur_again(attempt, ends):
    result = ends(f"echo no such thing; exit {EXIT_DRIVER_FAILED}")
    assert (result.cause, attempt.newest_restart()) == ("driver_died", None)
    assert f"The driver ended with code {EXIT_DRIVER_FAILED}" in result.text


def test_after_a_stop_request_nothing_is_started_again(attempt, ends):
    attempt.stop.write(StopRequest("interrupt"))
    result = ends(KILLED)
    assert (result.state, result.cause) == ("stopped", "interrupt")
