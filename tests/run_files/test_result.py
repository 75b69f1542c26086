import re
import signal
from dataclasses import replace

import pytest

from clustertrain.driver.result_of_fit import of_error, of_outcome
from clustertrain.errors import (
    EXIT_CLUSTER,
    EXIT_INTERRUPTED,
    EXIT_JOB,
    EXIT_STOPPED,
    EXIT_STORAGE,
    ClusterError,
    DataError,
    JobError,
    RunStopped,
    StorageError,
)
from clustertrain.run_files.job_diff import standing_attempt
from clustertrain.run_files.records.claim import ResumePoint
from clustertrain.run_files.records.requests import StopRequest
from clustertrain.run_files.records.result import Outcome, Result
from clustertrain.run_files.result import ended, write_result
from clustertrain.run_files.streams.event_log import EventLog
from support.sample_checkpoints import commit
from support.sample_records import sample_claim, sample_failure, sample_restart_claim


@pytest.fixture
def attempt(run):
    attempt = run.attempt(1)
    attempt.claim.create(sample_claim(world_size=2))
    return attempt


def start(attempt, restart, **files):
    """A start of the group with its records: outcome=Outcome(…), failure=Failure(…)."""
    for name, record in {"claim": sample_restart_claim(), **files}.items():
        getattr(attempt.restart(restart), name).write(record)


FAILURE = sample_failure(signal=signal.SIGKILL, text="rank 1 died of signal 9 (SIGKILL)", step=12)


def test_the_number_of_workers_is_that_of_the_newest_start(attempt):
    assert ended(attempt, "stopped", "user").world_size == 2, "of the claim: none has started"
    start(attempt, 0, plan=ResumePoint(None, 0, 2))
    start(attempt, 1, plan=ResumePoint(None, 0, 1))
    start(attempt, 2)  # it ended before it had a plan
    assert ended(attempt, "stopped", "user").world_size == 1


def test_a_finished_result_contains_the_report_of_rank_0(attempt):
    start(
        attempt,
        0,
        outcome=Outcome(True, 40, 2, {"loss": 0.5}, train_started=1.0, train_ended=4.0, skipped_steps=2),
    )
    EventLog(attempt.events).write("resumed", redone_steps=3)
    EventLog(attempt.events).write("resumed", redone_steps=4)
    result = of_outcome(attempt)
    assert (result.state, result.exit_code, result.step, result.metrics) == ("done", 0, 40, {"loss": 0.5})
    assert (result.train_s, result.redone_steps, result.world_size) == (3.0, 7, 2)
    assert result.skipped_steps == 2


def test_a_stop_after_the_last_step_leaves_only_the_end_to_the_next_start(run, attempt):
    """A function that has nothing left to train reports neither step nor metrics."""
    saved = ResumePoint("00000040-1.0", 40, 2)
    start(attempt, 0, plan=ResumePoint(None, 0, 2))
    EventLog(attempt.restart(0).metrics).write("train", step=40, epoch=0, loss=0.5)
    write_result(attempt, Result("stopped", "user", 75, step=40, metrics={"loss": 0.5}))
    later = run.attempt(2)
    later.claim.create(sample_claim())
    start(later, 0, plan=saved, outcome=Outcome(True, 0))
    result = of_outcome(later)
    assert (result.state, result.step, result.metrics) == ("done", 40, {"loss": 0.5})
    assert not result.already_finished and write_result(later, result) == standing_attempt(run).result.read()
    again = run.attempt(3)
    again.claim.create(sample_claim())
    start(again, 0, plan=saved, outcome=Outcome(True, 40, metrics={"loss": 9.0}))
    assert write_result(again, of_outcome(again)).already_finished
    assert (again.result.read().metrics, standing_attempt(run)) == ({"loss": 0.5}, later)


def test_a_clock_that_was_set_back_leaves_a_result_that_is_read(attempt):
    start(attempt, 0, outcome=Outcome(True, 40, train_started=4000.0, train_ended=400.0))
    assert write_result(attempt, of_outcome(attempt)).train_s == 0.0


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(True, 40, early_stop="Early stopping at step 40: …"), ("done", "early_stop", 0)),
        (Outcome(False, 3), ("stopped", "terminated", EXIT_INTERRUPTED)),
    ],
    ids=["early stopping", "a stop without a checkpoint"],
)
def test_a_training_that_returned_before_its_last_step_has_its_reason(attempt, outcome, expected):
    start(attempt, 0, outcome=outcome)
    attempt.stop.write(StopRequest("terminated"))
    result = of_outcome(attempt)
    assert (result.state, result.cause, result.exit_code) == expected
    assert outcome.early_stop in result.text


def test_a_run_whose_folder_was_removed_is_not_said_to_be_stopped(run):
    with pytest.raises(StorageError, match="was removed while the run was active"):
        of_outcome(run.attempt(1))


@pytest.mark.parametrize(
    ("state", "cause"), [("stopped", "user"), ("preempted", "preempted"), ("cancelled", "cancelled")]
)
def test_a_stop_with_a_checkpoint_is_75_whoever_asked_for_it(attempt, state, cause):
    assert ended(attempt, state, cause).exit_code == EXIT_INTERRUPTED
    commit(attempt.run.checkpoints, 3)
    assert ended(attempt, state, cause).exit_code == EXIT_STOPPED


def test_a_checkpoint_that_does_not_verify_does_not_count(attempt):
    folder = attempt.run.local_path(attempt.run.checkpoints.key) / "00000003-1.0"
    folder.mkdir(parents=True)
    (folder / "MANIFEST.json").write_text("{}")
    assert ended(attempt, "stopped", "interrupt").exit_code == EXIT_INTERRUPTED


RETRIED = replace(FAILURE, cause="retries_used_up")
REPEATED = replace(FAILURE, cause="same_error_twice", text="ValueError: no")


@pytest.mark.parametrize(
    ("failures", "error", "ended_as", "text"),
    [
        ((), JobError("batch too large"), ("job", EXIT_JOB), "batch too large"),
        ((), ClusterError("no GPU"), ("cluster", EXIT_CLUSTER), "no GPU"),
        ((), DataError("sha256 differs"), ("data", EXIT_STORAGE), "sha256 differs"),
        ((FAILURE, None), DataError("disk is gone"), ("data", EXIT_STORAGE), "disk is gone"),
        ((FAILURE, RETRIED), RuntimeError("it died"), ("retries_used_up", 1), re.escape(FAILURE.text)),
        ((FAILURE, REPEATED), RuntimeError("x"), ("same_error_twice", 1), ".*twice at step 12.*"),
    ],
    ids=["job", "cluster", "data", "a failure of an older start", "retries used up", "the same twice"],
)
def test_the_failure_of_the_newest_start_or_else_the_error_is_the_result(
    attempt, failures, error, ended_as, text
):
    for number, failure in enumerate(failures):
        start(attempt, number, **({"failure": failure} if failure is not None else {}))
    result = of_error(attempt, error)
    assert (result.state, result.cause, result.exit_code) == ("failed", *ended_as)
    assert result.restarts == max(0, len(failures) - 1)
    assert re.fullmatch(text, result.text, re.DOTALL)


def test_an_unknown_error_is_named_with_the_log(attempt):
    result = of_error(attempt, OSError("no space\nreally"))
    assert result.text.splitlines() == [
        "OSError: no space",
        "really",
        f"The full traceback is in {attempt.driver_log}.",
    ]


def test_a_stop_before_training_is_no_error(attempt):
    attempt.stop.write(StopRequest("interrupt"))
    result = of_error(attempt, RunStopped("stopped", checkpointed=False))
    assert (result.state, result.cause, result.exit_code) == ("stopped", "interrupt", EXIT_INTERRUPTED)
