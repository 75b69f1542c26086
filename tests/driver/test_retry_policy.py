"""When the restarts of the worker group end."""

import re
import signal

import pytest
from ray.exceptions import RayTaskError

from clustertrain.driver import retry_policy
from clustertrain.driver.calls import errors_of_ray
from clustertrain.driver.ray_cluster import Deadline
from clustertrain.driver.result_of_fit import of_error
from clustertrain.driver.retry_policy import RetryBudget, RetryPolicy
from clustertrain.driver.world_size import Workers
from clustertrain.errors import DataError, RunStopped
from clustertrain.job.file import parse_job
from clustertrain.launchers.local.ray import LocalRay
from clustertrain.observe.event_lines import line_of
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.requests import StopRequest
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.streams.events import read_events
from support.sample_records import sample_failure, sample_restart_claim

ONE = Workers(1)


@pytest.mark.parametrize(
    ("retries", "committed", "steps", "text"),
    [
        pytest.param(
            2,
            0,
            [0, 0, 10, 10, 20, 20, 20],
            "All 2 restarts in a row without a new committed step "
            "are used up (failures.retries); the run is at step 20.",
            id="renewed by every new checkpoint",
        ),
        pytest.param(0, 5, [10], "", id="no retries, whatever was committed"),
        pytest.param(1, 20, [10, 10], None, id="a lost checkpoint that is written again is no progress"),
    ],
)
def test_the_retries_are_over_at_the_last_of_these_committed_steps(retries, committed, steps, text):
    patience = RetryBudget(retries, committed)
    assert [patience.is_over_after(step) for step in steps] == [False] * (len(steps) - 1) + [True]
    assert text is None or patience.text() == text


def policy_of(attempt, retries):
    """That of workers on this machine, which wait for no node."""
    job = parse_job("name: a\nfunction: m:f\n", "job.yaml")
    cluster = LocalRay("unused", job.resources, Deadline(1.0, ""))
    return RetryPolicy(AttemptRef.of(attempt), retries, cluster, world_sizes=(1,))


def fails(attempt, policy, restart, *, workers=ONE, **fields):
    """What the policy decides after a start of the group that failed so."""
    attempt.restart(restart).claim.create(sample_restart_claim())
    failure = {"restart": restart, "step": 7, "signature": f"E{restart}", **fields}
    attempt.restart(restart).failure.write(sample_failure(**failure))
    return policy.after_failure(workers)


def test_restarts_without_a_checkpoint_are_counted_and_end(attempt):
    policy = policy_of(attempt, retries=2)
    assert fails(attempt, policy, 0) == ONE
    assert fails(attempt, policy, 1) == ONE
    text = r"E: no\nAll 2 restarts in a row .* at step 0: there is no checkpoint"
    assert re.search(text, fails(attempt, policy, 2).text)
    assert attempt.restart(2).failure.read().cause == "retries_used_up"
    told = [(e["restart"], e["of"]) for e in read_events(attempt.run, attempt.events_key)]
    assert told == [(1, 2), (2, 2)]


def test_the_result_of_a_group_that_does_not_start_is_not_the_failure_before(attempt):
    """A start without a report counts, too."""
    policy = policy_of(attempt, retries=1)
    fails(attempt, policy, 0)
    result = policy.after_failure(ONE)
    assert (result.state, result.cause) == ("failed", "error")
    assert result.text.startswith("The workers could not be started") and "All 1 restarts" in result.text


def test_the_result_of_an_error_from_a_call_of_ray_is_its_own_text(attempt):
    """And not the traceback that is the text of Ray's copy, which has the same type."""
    error = DataError("d cannot be fetched.\nRun again.")
    try:
        with errors_of_ray():
            raise RayTaskError("stage_data", "a traceback", error).as_instanceof_cause()
    except DataError as raised:
        result = of_error(attempt, raised)
    assert (result.text, result.exit_code) == (str(error), 4)


def test_the_same_error_at_the_same_step_ends_it_and_a_kill_does_not(attempt):
    policy = policy_of(attempt, retries=9)
    for restart in (0, 1, 2):
        fails(attempt, policy, restart, signature="signal 9", signal=signal.SIGKILL, transient=True)
    fails(attempt, policy, 3, signature="E", rank=0)
    fails(attempt, policy, 4, signature="E", step=8)
    assert fails(attempt, policy, 5, signature="E", rank=1).cause == "same_error_twice"
    assert attempt.restart(5).failure.read().cause == "same_error_twice"


def test_the_steps_of_a_script_are_not_known_and_its_files_show_progress(attempt):
    policy = policy_of(attempt, retries=9)
    files = attempt.run.local_path(attempt.run.checkpoints.key)
    files.mkdir(parents=True)
    for restart in (0, 1):
        (files / f"epoch-{restart}.pt").touch()
        fails(attempt, policy, restart, signature="code 7: no", error="ScriptFailed", step=0)
    third = fails(attempt, policy, 2, signature="code 7: no", error="ScriptFailed", step=0)
    assert third.state == "failed"


@pytest.mark.parametrize(("failures", "ends"), [("{retries: 9}", False), ("{}", True)])
def test_a_script_without_files_starts_as_often_as_its_job_says(attempt, failures, ends):
    record_job(attempt, parse_job(f"name: a\nscript: train.py\nfailures: {failures}\n", "job.yaml"))
    policy = policy_of(attempt, retries=9)
    of_script = {"signature": "code 7: no", "error": "ScriptFailed", "step": 0}
    fails(attempt, policy, 0, **of_script)
    assert isinstance(fails(attempt, policy, 1, **of_script), Result) == ends


def test_after_a_stop_request_nothing_is_restarted_and_no_failure_is_shown(attempt):
    policy = policy_of(attempt, retries=9)
    attempt.stop.write(StopRequest("interrupt"))
    with pytest.raises(RunStopped):
        fails(attempt, policy, 0, transient=True)
    assert shown_events(attempt) == []
    assert fails(attempt, policy, 1, fatal=True).state == "failed"  # such as a last save on a full disk


def test_the_restarts_of_a_script_are_counted_without_claims_on_its_steps(attempt):
    record_job(attempt, parse_job("name: a\nscript: train.py\n", "job.yaml"))
    policy = policy_of(attempt, retries=1)
    fails(attempt, policy, 0, text="no", error="ScriptFailed", step=0)
    assert shown_events(attempt) == ["no\nrestarting the workers (1 of at most 1)"]
    text = r"All 1 restarts of this start are used up .* steps are unknown\."
    assert re.search(text, fails(attempt, policy, 1, error="ScriptFailed", step=0).text)


def shown_events(attempt):
    lines = map(line_of, read_events(attempt.run, attempt.events_key))
    return [line for line in lines if line is not None]


def test_a_gpu_that_another_process_uses_is_waited_for(attempt, monkeypatch):
    waited_s = []
    monkeypatch.setattr(retry_policy, "wait_until", lambda stops, seconds, poll_s: waited_s.append(seconds))
    policy = policy_of(attempt, retries=3)
    fails(attempt, policy, 0)
    fails(attempt, policy, 1, transient=True, retry_after_s=30.0)
    assert waited_s == [30.0]


def test_a_stop_ends_the_wait(attempt, monkeypatch):
    policy = policy_of(attempt, retries=3)

    def wait(condition, seconds, poll_s):
        attempt.stop.write(StopRequest("user"))
        condition()

    monkeypatch.setattr(retry_policy, "wait_until", wait)
    with pytest.raises(RunStopped):
        fails(attempt, policy, 0, retry_after_s=30.0)
