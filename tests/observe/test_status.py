import json
import re
from dataclasses import replace
from itertools import chain, repeat

import pytest

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job
from clustertrain.launchers.listing import list_runs
from clustertrain.launchers.resolve_run import find
from clustertrain.observe.event_lines import line_of
from clustertrain.observe.run_state import RunState
from clustertrain.observe.status import read_files, status_by_files
from clustertrain.observe.status_json import StoredStatus
from clustertrain.observe.tables import next_step, print_ending, print_table, status_rows, summary_rows
from clustertrain.observe.wait import wait_for_end
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.claim import ResumePoint
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import stopped, write_result
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.storage import Location, open_store
from support.run_status import status_of
from support.sample_records import sample_restart_claim


def found(folder):
    return find(str(folder), (), None, print)[1].visible_run()


def test_a_folder_without_a_run_lists_those_of_the_storage(run, tmp_path):
    claim_attempt(run)
    with pytest.raises(JobError, match="Started so far: digits"):
        found(tmp_path)


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
def test_a_live_state_follows_from_the_events(run, events, state):
    attempt = claim_attempt(run)  # by this process, which lives
    for kind, fields in events:
        EventLog(attempt.events).write(kind, **fields)
    assert status_of(run).state == state


GPU = {"pci": "00000000:1B:00.0", "name": "NVIDIA H100"}


def test_the_gpus_of_the_ranks_are_shown_at_their_start(run):
    attempt = claim_attempt(run)
    ranks = [
        {"rank": rank, "host": "node7", "pid": 10 + rank, "gpus": [{"uuid": f"GPU-{rank}", **GPU}]}
        for rank in (0, 1)
    ]
    group = {"restart": 0, "world_size": 2, "ranks": ranks}
    EventLog(attempt.events).write("group_started", **group)
    assert line_of({"kind": "group_started", **group}) == "2 workers started\n2 × NVIDIA H100"
    printed = StoredStatus.of(status_of(run)).json()
    assert json.loads(printed)["ranks"] == ranks
    assert StoredStatus.parsed(printed.replace('{"attempt"', '{"attempt": 1, "later": 2, "attempt"')).ranks


def test_a_run_with_fewer_workers_than_it_could_have_names_both_numbers(run):
    attempt = claim_attempt(run, world_size=8)
    for number, workers in ((0, 8), (1, 4)):
        attempt.restart(number).claim.create(sample_restart_claim())
        attempt.restart(number).plan.write(ResumePoint(None, 0, workers))
        rows = dict(status_rows(status_by_files(read_files(run))))
        assert rows.get("workers") == (None if workers == 8 else "4 of 8")
    write_result(attempt, stopped(attempt))
    assert dict(status_rows(status_by_files(read_files(run))))["workers"] == "4 of 8"


def test_a_dead_attempt_without_a_result_is_lost(run):
    attempt = claim_attempt(run)
    attempt.claim.write(replace(attempt.claim.read(), pid_started_ticks=0))
    status = status_of(run)
    assert (status.state, status.runner) == ("lost", None)
    assert "run it again" in str(status_rows(status))


def test_a_run_that_ends_while_its_heartbeat_is_watched_is_not_lost(run, monkeypatch):
    claim_attempt(run)

    def ends_meanwhile(attempt):
        write_result(attempt, Result("done", "finished", 0, step=40))

    monkeypatch.setattr("clustertrain.observe.status.who_runs", ends_meanwhile)
    status = status_of(run)
    assert (status.state, status.step, status.exit_code) == ("done", 40, 0)


def test_ls_shows_a_reason_in_one_harmless_line_that_moves_its_own_row_only(run, tmp_path):
    reason = f"train.py: \x1b[2J{'no ' * 40}end."
    write_result(claim_attempt(run), Result("failed", "error", 1, text=f"{reason}\nMend it."))
    write_result(claim_attempt(RunDir.newest(str(tmp_path), "other")), Result("done", "finished", 0, step=4))
    table = list_runs(str(tmp_path))
    assert table.values()[0]["text"] == reason
    header, failed, other = table.lines()
    assert "  train.py: no no" in failed and "no no end.  1" in failed
    assert header.index("WHERE") == other.index("this machine") < 100


@pytest.mark.parametrize(("total", "left"), [({"total_steps": 40}, ", 0:20 left"), ({}, "")])
def test_the_time_that_is_left_follows_from_the_last_lines(run, total, left):
    attempt = claim_attempt(run)
    attempt.restart(0).plan.write(ResumePoint(None, 0, 1))
    for step in (20, 30):
        EventLog(attempt.restart(0).metrics).write(
            "train", step=step, loss=0.5, time=1000.0 + 2 * step, **total
        )
    EventLog(attempt.restart(0).metrics).write("eval", step=30, loss=0.25)
    assert dict(status_rows(status_of(run)))["last figures"] == f"step 30, loss 0.25{left}"


def test_a_script_has_no_step_in_status_and_ls(run):
    attempt = claim_attempt(run)
    record_job(attempt, parse_job("name: digits\nscript: train.py\n", "job.yaml"))
    assert list_runs(run.store.uri("")).lines()[1].split()[:3] == ["digits", "waiting", "-"]
    attempt.restart(1).claim.create(sample_restart_claim())
    result = write_result(attempt, stopped(attempt))
    assert (result.step, result.redone_steps, result.exit_code) == (None, None, 130)
    rows = dict(summary_rows(run, result))
    assert rows["restarts"] == "1"
    assert "step" not in rows
    assert list_runs(run.store.uri("")).lines()[1].split()[:3] == ["digits", "stopped", "-"]


def test_the_summary_has_state_and_cause(run):
    counts = {"restarts": 1, "redone_steps": 5, "skipped_steps": 3, "train_s": 6.0}
    result = Result("done", "finished", 0, step=40, metrics={"accuracy": 0.98, "lr": 1}, **counts)
    rows = dict(summary_rows(run, result))
    assert rows["skipped steps"] == "3, their gradients overflowed fp16"
    for none in (0, None):
        assert "skipped steps" not in dict(summary_rows(run, replace(result, skipped_steps=none)))
    assert rows["state"] == "done (finished)"
    assert rows["accuracy"] == "0.98"
    assert "lr" not in rows
    assert rows["restarts"] == "1, 5 steps repeated"
    assert rows["training"] == "0:06 in the last start"
    assert rows["folder"] == run.uri


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (Result("stopped", "interrupt", 75), "has saved a checkpoint.\ncontinue:  "),
        (Result("stopped", "interrupt", 130), "before it had a checkpoint.\nstart again:  "),
        (Result("stopped", "interrupt", 75, step=None), "in its checkpoint folder.\ncontinue:  "),
        (Result("stopped", "interrupt", 130, step=None), "whether it resumes.\nstart again:  "),
        (Result("failed", "error", 1, checkpoint="00000010-1.0"), "--accept-changes"),
    ],
)
def test_the_end_names_how_to_go_on(run, result, said):
    hint = next_step(run, result, CommandLine("run", "j.yaml"))
    assert said in hint
    assert "clustertrain run j.yaml" in hint


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_a_job_that_is_wrong_is_offered_again_only_when_it_is_corrected(run, code):
    claim_attempt(run)
    hint = next_step(run, Result("failed", "error", code), CommandLine("run", "j.yaml"))
    assert f"\n{'once corrected' if code == 2 else 'again'}:  clustertrain run j.yaml\n" in hint


def test_tensorboard_gets_the_server_of_the_storage():
    location = Location("s3://b/runs", endpoint="http://[::1]:9000", region="eu-x", profile="a b")
    run = RunDir(open_store(location), "digits", 1)
    hint = next_step(run, Result("done", "finished", 0, metrics={"loss": 0.5}), CommandLine("run", "j.yaml"))
    variables = "AWS_ENDPOINT_URL='http://[::1]:9000' AWS_DEFAULT_REGION=eu-x AWS_PROFILE='a b'"
    assert re.match(rf"curve:  {re.escape(variables)} \S*tensorboard --logdir s3://b/runs/digits/g1\n", hint)


def test_the_reason_of_early_stopping_is_no_error(run, capsys):
    result = Result("done", "early_stop", 0, text="Early stopping at step 40: …")
    write_result(claim_attempt(run), result)
    assert ("text", result.text) in status_rows(status_of(run))
    print_ending(run, result)
    output, errors = capsys.readouterr()
    assert "done (early_stop)" in output and errors == ""


def test_no_text_of_a_result_can_change_the_terminal(run, capsys):
    result = Result("failed", "error", 1, text="\x1b[31mred\x1b[0m\x1b]0;a title\x07 end\nthe second line")
    write_result(claim_attempt(run), result)
    print_table(status_rows(status_of(run)))
    print_ending(run, result)
    output, errors = capsys.readouterr()
    assert "red end\nthe second line" in output
    assert errors == "error: red end\nthe second line\n"
    assert "\x1b" not in output


# ------------------------------------------------------------ a run of SLURM, where there is no squeue
# tests/slurm/test_slurm_status.py has those with one, tests/launchers/slurm/test_standing.py every case.


@pytest.mark.parametrize("result", [None, Result("cancelled", "cancelled", 130, step=0)])
def test_a_start_without_a_step_shows_that_of_the_checkpoint_it_would_continue(run, result):
    attempt = claim_attempt(run)
    if result is not None:
        write_result(attempt, result)
    assert status_of(run).step is None
    assert json.loads(list_runs(run.store.uri("")).json())[0]["step"] is None
    for name in ("00000003-1.0", "00000040-1.0"):
        (run.store.root / run.checkpoints.key / name).mkdir(parents=True)
    assert status_of(run).step == 40


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


def end_of(states):
    answers = (
        StoredStatus(state=each.state, cause=each.cause, over=each.over, of_result=each.of_result)
        for each in chain(states, repeat(GOES_ON, 1))
    )
    return wait_for_end("a", lambda: next(answers), lambda line: None, 0.01).standing
