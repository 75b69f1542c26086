"""How often a run that has ended is asked for its state."""

from itertools import chain, repeat

import pytest

from clustertrain.observe.run_state import RunState
from clustertrain.observe.wait import follow_to_its_end, wait_for_end
from clustertrain.run.claims import claim_attempt
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import RunDir
from clustertrain.run.records import Result
from clustertrain.run.result import write_result
from run_status import status_of

GOES_ON = RunState("queued", "requeued")
DONE = RunState("done", "finished", over=True, of_result=True)


@pytest.mark.parametrize(
    "seen",
    [
        RunState("preempted", "preempted", over=True, of_result=True),
        RunState("stopped", "time_limit", over=True, of_result=True),
        RunState("failed", "error", over=True),  # as the scheduler says, without a result
        RunState("lost", "vanished", over=True),
    ],
    ids=lambda seen: seen.state,
)
def test_a_job_that_looks_ended_while_it_is_requeued_is_asked_again(seen, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert end_of([seen, GOES_ON, seen, seen, GOES_ON, DONE]) == seen
    assert end_of([seen, GOES_ON, DONE]) == DONE


@pytest.mark.parametrize("state", ["done", "failed", "stopped", "cancelled"])
def test_a_result_that_no_requeue_takes_back_is_the_end_at_once(state, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    end = RunState(state, "a cause", over=True, of_result=True)
    assert end_of([end]) == end


def test_submit_wait_of_a_run_that_has_ended_prints_its_result_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    run = RunDir.newest(str(tmp_path), "a")
    write_result(claim_attempt(run), Result("failed", "error", 1, text="no"))
    assert follow_to_its_end(run, status_of, CommandLine("submit", "job.yaml"), print) == 1
    assert "failed (error)" in capsys.readouterr().out


def end_of(states):
    answers = chain(states, repeat(GOES_ON, 1))
    return wait_for_end(
        "a", lambda: next(answers), lambda state: (state.line, state), lambda line: None, 0.01
    )
