import pytest

from clustertrain.claims import claim_attempt
from clustertrain.errors import JobError
from clustertrain.observe.events import EventLog
from clustertrain.observe.report import list_lines, status_rows, summary_rows
from clustertrain.result import Result, write_result
from clustertrain.run_dir import RunDir
from clustertrain.status import all_runs, find_run, request_stop, status_of


@pytest.fixture
def run(tmp_path):
    return RunDir.newest(str(tmp_path), "digits")


def test_a_run_is_found_by_its_folder(run, tmp_path):
    claim_attempt(run)
    assert find_run(str(tmp_path / "digits")).uri == run.uri


def test_a_folder_without_a_run_lists_those_of_the_storage(run, tmp_path):
    claim_attempt(run)
    with pytest.raises(JobError, match="Started so far: digits"):
        find_run(str(tmp_path))


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "waiting"),
        ([("stage", {"phase": "download"})], "staging"),
        ([("stage", {"phase": "download"}), ("stage", {"phase": "ready"})], "waiting"),
        ([("group_started", {})], "running"),
        ([("group_started", {}), ("restarting", {})], "waiting"),
    ],
)
def test_a_live_state_is_read_off_its_events(run, events, state):
    attempt = claim_attempt(run)  # by this process, which lives
    for kind, fields in events:
        EventLog(attempt.events).write(kind, **fields)
    assert status_of(run).state == state


def test_a_dead_attempt_without_a_result_is_lost(run):
    attempt = claim_attempt(run)
    attempt.write("claim.json", {**attempt.read("claim.json"), "pid_started_ticks": 0})
    status = status_of(run)
    assert (status.state, status.runner) == ("lost", None)
    assert "run it again" in str(status_rows(status))


def test_a_stop_is_a_file_for_a_run_that_lives(run):
    attempt = claim_attempt(run)
    assert request_stop(run).startswith("pid ")
    assert attempt.read("stop")["cause"] == "user"
    write_result(attempt, Result("stopped", "user", 75))
    with pytest.raises(JobError, match="nothing to stop"):
        request_stop(run)


def test_ls_shows_state_step_and_figures(run, tmp_path):
    write_result(claim_attempt(run), Result("done", "finished", 0, step=40, metrics={"accuracy": 0.98}))
    other = RunDir.newest(str(tmp_path), "other")
    claim_attempt(other)
    header, first, second = list_lines(all_runs(str(tmp_path)))
    assert first.split() == ["digits", "done", "40", "1", "accuracy", "0.98"]
    assert second.split()[:2] == ["other", "waiting"]
    assert header.index("STATE") == first.index("done")


def test_the_summary_says_how_it_ended(run):
    result = Result(
        "done",
        "finished",
        0,
        step=40,
        epoch=2,
        metrics={"accuracy": 0.98, "lr": 1},
        restarts=1,
        redone_steps=5,
    )
    rows = dict(summary_rows(run, result))
    assert rows["state"] == "done (finished)"
    assert rows["accuracy"] == "0.98"
    assert "lr" not in rows
    assert rows["restarts"] == "1, 5 steps done again"
    assert rows["folder"] == run.uri
