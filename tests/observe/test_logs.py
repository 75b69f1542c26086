import time

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import JobError
from clustertrain.observe import logs
from clustertrain.observe.logs import LogSelection, log_lines
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import Cancellation, SchedulerStart
from clustertrain.run_files.result import write_result
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.stream_upload import StreamUpload
from support.run_status import status_of
from support.sample_records import sample_submission


@pytest.fixture
def attempt(run):
    """Two nodes with two ranks, as two nodes write it."""
    attempt = claim_attempt(run)
    for node, ranks in (("node1", (0, 1)), ("node2", (2, 3))):
        for rank in ranks:
            put(attempt, node, f"rank-{rank}.log", f"here is {rank}\nand goes")
        put(attempt, node, "ray.log", f"Ray of {node}\n")
    attempt.driver_log.write_text("driven\n")
    return attempt


def put(attempt, node, name, text):
    path = attempt.path / "logs" / node / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def shown(run, **wanted):
    return list(log_lines(run, LogSelection(**wanted), status_of, follow=False))


def test_each_line_of_a_nodes_logs_names_its_log(run, attempt):
    lines = ["rank-2 | here is 2", "rank-3 | here is 3", "ray | Ray of node2"]
    assert shown(run, node="node2") == [*lines, "rank-2 | and goes", "rank-3 | and goes"]


def test_a_rank_of_a_node(run, attempt):
    assert shown(run, rank=1) == shown(run, rank=1, node="node1") == ["here is 1", "and goes"]
    assert shown(run, driver=True) == ["driven"]


HOSTILE = "\x1b[31mred\x1b[0m \x1b]0;a title\x07\x1b[2J\x1b]52;c;cm0=\x07\x9b31mend"


def test_no_log_can_change_the_terminal(run, attempt):
    """Neither in a terminal nor in a file: `clustertrain logs` is read by both."""
    attempt.driver_log.write_text(f"{HOSTILE}\n\r10%\r20%\n\tlast{HOSTILE}")
    put(attempt, "node1", "rank-0.log", f"\n{HOSTILE}")
    EventLog(attempt.events).write("warning", text=HOSTILE)
    write_result(attempt, Result("failed", "error", 1, text=f"two\n{HOSTILE}"))
    shown_as = "red \\x9b31mend"
    assert shown(run, driver=True) == [shown_as, "20%", f"\tlast{shown_as}"]
    assert shown(run, rank=0)[-1] == shown_as
    assert f"rank-0 | {shown_as}" in shown(run, node="node1")
    cause, event = CliRunner().invoke(main, ["logs", run.uri]).stdout.split("\n2")
    assert cause == f"failed (error): two\n{shown_as}"
    assert event.endswith(f"warning: {shown_as}\n")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"node": "node9"}, "no log of node 'node9'.\nThere are: node1, node2."),
        ({"rank": 9}, r"no log of rank 9.\nThere are: \[0, 1, 2, 3\]"),
        ({"rank": 1, "node": "node2"}, r"no log of rank 1 on node2.\nThere are: \[2, 3\]"),
        ({"attempt": 5}, r"has no attempt 5.\nThere are: \[1\]"),
    ],
    ids=["node", "rank", "rank of node", "attempt"],
)
def test_a_missing_log_is_an_error_that_lists_the_existing_ones(run, attempt, wanted, said):
    with pytest.raises(JobError, match=said):
        shown(run, **wanted)


@pytest.mark.parametrize("other", [("--rank", "1"), ("--node", "node1")])
def test_the_log_of_the_driver_is_no_other_one(run, attempt, other):
    refused = CliRunner().invoke(main, ["logs", run.uri, "--driver", *other])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--rank and --node are others" in refused.stderr


@pytest.mark.slow
def test_following_prints_new_events_and_the_failure(run, attempt):
    log = EventLog(attempt.events)
    log.write("note", text="it began")
    lines = log_lines(run, LogSelection(), status_of, follow=True)
    assert next(lines).endswith("it began")
    log.write("note", text="it goes on")
    assert next(lines).endswith("it goes on")
    write_result(attempt, Result("failed", "error", 1, text="eels"))
    assert list(lines) == ["failed (error): eels"]


def test_following_a_rank_waits_for_its_log(run, monkeypatch):
    """The log comes when it was looked for in vain."""
    attempt = claim_attempt(run)
    monkeypatch.setattr("time.sleep", lambda _: put(attempt, "node1", "rank-0.log", "at last\n"))
    assert next(log_lines(run, LogSelection(rank=0), status_of, follow=True)) == "at last"


def test_following_a_node_includes_later_logs(run, attempt):
    lines = log_lines(run, LogSelection(node="node1"), status_of, follow=True)
    assert [next(lines) for _ in range(3)][2] == "ray | Ray of node1"
    put(attempt, "node1", "rank-7.log", "late\n")
    assert next(lines) == "rank-7 | late"


def test_another_machine_finds_the_logs_of_every_node_on_s3(moto_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = RunDir.newest(moto_s3.location("runs"), "digits")
    attempt = claim_attempt(run)
    with StreamUpload(attempt, print):
        put(attempt, "node1", "rank-0.log", "here is 0\n")
        put(attempt, "node1", "ray.log", "Ray of node1\n")
        put(attempt, ".", "driver.log", "driven\n")
    write_result(attempt, Result("done", "finished", 0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine's"))
    assert shown(run, rank=0) == ["here is 0"]
    assert shown(run, node="node1") == ["rank-0 | here is 0", "ray | Ray of node1"]
    with pytest.raises(JobError, match=r"There are: node1\."):
        shown(run, node="node2")


# ------------------------------------------------------------------------------- while a scheduler has it


def submit(run, job_id="12"):
    run.submission("slurm", job_id).write(sample_submission(job_id))


@pytest.fixture
def no_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def test_following_a_queued_run_prints_its_start_and_its_end(run, no_slurm):
    submit(run)
    lines = log_lines(run, LogSelection(rank=0), status_of, follow=True)
    assert next(lines).startswith("queued (scheduler): ")
    allocation = SchedulerStart("slurm", "12", {"cluster": "sim"}, nodes=("node1",))
    attempt = claim_attempt(run, launcher="slurm", allocation=allocation)
    put(attempt, "node1", "rank-0.log", "at last\n")
    assert next(lines) == "at last"
    write_result(attempt, Result("done", "finished", 0))
    assert list(lines) == []


def test_following_a_queued_run_asks_seldom_although_a_start_was_killed_before_its_claim(
    run, no_slurm, monkeypatch
):
    monkeypatch.setattr(logs, "QUEUE_POLL_S", 0.2)
    submit(run)
    run.attempt(1).path.mkdir(parents=True)
    asked = []

    def status_of_third_question(run):
        asked.append(time.monotonic())
        if len(asked) == 3:
            run.cancellation("slurm", "12").create(Cancellation(by="u on login"))
        return status_of(run)

    assert len(list(log_lines(run, LogSelection(), status_of_third_question, follow=True))) == 2
    assert asked[2] - asked[0] >= 0.4
