"""Which line is the first cause: of records and logs as a run leaves them."""

import os
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import JobError
from clustertrain.node.processes import this_process
from clustertrain.observe.explain.evidence import StartEvidence
from clustertrain.observe.explain.explanation import explain, summary
from clustertrain.observe.explain.stacks import grouped, stacks_now
from clustertrain.observe.tables import finish
from clustertrain.observe.terminal_text import plain
from clustertrain.run_files.command_line import UNKNOWN
from clustertrain.run_files.records.claim import Beat, ResumePoint
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.result import write_result
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.rank_log import OUTPUT_ENDS, start_line
from support.sample_records import sample_claim, sample_failure, sample_restart_claim

PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.5]:41713"
RAISED = 'Traceback (most recent call last):\n  File "/job/a.py", line 3, in f\n    g()\n{}\n'
FAILED = Result("failed", "error", 1, "it failed")


@pytest.fixture
def attempt(run):
    """One with a start of four ranks on two nodes, which has ended."""
    attempt = run.attempt(1)
    attempt.claim.create(sample_claim())
    restart = attempt.restart(0)
    restart.claim.create(sample_restart_claim())
    restart.plan.write(ResumePoint(None, 0, 4, ("node1", "node1", "node2", "node2")))
    attempt.result.write(FAILED)
    return attempt


def log(attempt, rank, text):
    path = attempt.rank_log("node1" if rank < 2 else "node2", rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"a line of an earlier start: CUDA out of memory\n{start_line(0)}\n{text}\n")


def fail(attempt, text, **fields):
    attempt.restart(0).failure.write(sample_failure(text=text, **fields))


@pytest.mark.parametrize("ranks", [None, "a", [3], [{}], [{"rank": "x", "host": "node9", "pid": 1}]])
def test_what_another_program_wrote_as_the_ranks_of_a_start_is_left_out(attempt, ranks):
    EventLog(attempt.events).write("group_started", restart=0, world_size=4, ranks=ranks)
    log(attempt, 3, RAISED.format("IndexError: Target 10 is out of bounds."))
    found = explain(attempt.run)
    assert (found.failure, found.rank, found.host) == ("label_out_of_range", 3, "node2")


FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("fixture", sorted(FIXTURES.iterdir()), ids=lambda path: path.stem)
@pytest.mark.parametrize("has_ended", [True, False])
def test_no_line_of_the_error_is_left_out(attempt, fixture, has_ended, capsys):
    """The error is in the log, in the record of the failure, or in both; the result may say more."""
    output = fixture.read_text()
    printed = "  | epoch 3\n" + "\n".join(f"  | {line}" for line in output.splitlines()[-10:])
    text = f"train.py ended with exit code 1 on rank 2.\n{printed}\nThe whole traceback: clustertrain logs"
    fail(attempt, text, rank=2, error="ScriptFailed", exit_code=1)
    log(attempt, 2, output)
    result = replace(FAILED, text=f"{text}\nIt was restarted 3 times.")
    if has_ended:
        attempt.result.write(result)
        finish(attempt.run, result, UNKNOWN)
        error = capsys.readouterr().err.removeprefix("error: ")
    else:
        attempt.path.joinpath("result.json").unlink()
        error = plain(text)
    explained = plain("\n".join(explain(attempt.run).lines()))
    assert error.count("\n") > 2
    for line in error.splitlines():
        assert line in explained


def test_a_rank_that_raised_comes_before_those_that_lost_it(attempt):
    fail(attempt, f"rank 0, a.py:3: {PEER}", rank=0, error="RuntimeError")
    for rank in (0, 1, 2):
        log(attempt, rank, RAISED.format(PEER))
    log(attempt, 3, RAISED.format("IndexError: Target 10 is out of bounds."))
    found = explain(attempt.run)
    assert (found.failure, found.rank, found.host, found.followed) == (
        "label_out_of_range",
        3,
        "node2",
        (0, 1, 2),
    )
    assert found.proof == "logs/node2/rank-3.log:6  rank 3  IndexError: Target 10 is out of bounds."
    assert found.evidence[-1].startswith("logs/node2/rank-2.log:6  rank 2  RuntimeError: ")
    assert len(found.evidence) <= 10
    assert [name for name, _ in summary(attempt)] == ["cause", "proof", "change"]
    assert "after:  only followed from it: the errors of ranks 0-2" in found.lines()


def test_a_rank_that_ended_early_is_the_cause_of_those_that_lost_it(attempt):
    fail(attempt, f"rank 1, a.py:3: {PEER}", rank=1, error="ScriptFailed", exit_code=1)
    for rank in (0, 1, 3):
        log(attempt, rank, f"epoch 1\n{RAISED.format(PEER)}{OUTPUT_ENDS}")
    log(attempt, 2, "epoch 1")
    assert (explain(attempt.run).failure, explain(attempt.run).rank) == ("gloo_peer", 1), "rank 2 runs on"
    log(attempt, 2, f"epoch 1\n{OUTPUT_ENDS}")
    found = explain(attempt.run)
    assert (found.failure, found.rank, found.followed) == ("ended_early", 2, (0, 1, 3))
    assert found.evidence[0].endswith("  rank 2  epoch 1")


def test_what_a_rank_raised_by_itself_comes_before_what_others_printed(attempt):
    text = "rank 2, a.py:3: ValueError: upside down"
    fail(attempt, text, rank=2, error="ValueError")
    attempt.result.write(replace(FAILED, text=text))
    log(attempt, 0, "warning: [Errno 28] No space left on device")
    handled = f"retrying: No space left on device\n{RAISED.format('KeyError: a')}"
    log(attempt, 2, f"{handled}\n{RAISED.format('[rank2]: ValueError: upside down')}")
    found = explain(attempt.run)
    assert (found.failure, found.rank) == ("own_exception", 2)
    assert found.cause == "rank 2 on node2 raised ValueError: upside down at a.py:3 (your own code)"
    assert "upside down" in found.proof
    assert summary(attempt) == []


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/job/a.py", line 9, in main
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/job/a.py", line 3, in f
    | OutOfData: no more
    +------------------------------------
"""


@pytest.mark.parametrize("traceback", [RAISED.format("a.f.<locals>.OutOfData: no more"), GROUP, ""])
def test_an_exception_of_an_own_class_is_named_with_its_line(attempt, traceback):
    """Without a traceback: it is too long for the end of the log that is read."""
    fail(attempt, "rank 2, a.py:3 in f: OutOfData: no more\n  called from b.py:1", rank=2, error="OutOfData")
    log(attempt, 2, f"{RAISED.format('OSError: No space left on device')}it was handled\n{traceback}")
    found = explain(attempt.run)
    assert (found.failure, found.rank) == ("own_exception", 2)
    assert found.cause.endswith("OutOfData: no more at a.py:3 (your own code)")


INSTALLED = "/usr/lib/python3.11/json/decoder.py", "/env/lib/python3.12/site-packages/pandas/io.py"


OF_KIT = "/opt/src/clustertrain/worker/rank.py", "/opt/src/clustertrain/driver/calls.py"


@pytest.mark.parametrize("library", [*INSTALLED, *OF_KIT, "<string>"])
def test_the_line_of_the_own_code_is_named_and_not_one_of_a_library(attempt, library):
    frame = f'  File "{library}", line 80, in read'
    error = "json.JSONDecodeError: Expecting value"
    fail(attempt, f"rank 2: {error}", rank=2, error="JSONDecodeError")
    log(attempt, 2, RAISED.format(f"{frame}\n{error}"))
    assert explain(attempt.run).cause.endswith(f" raised {error} at a.py:3 (your own code)")
    log(attempt, 2, f"Traceback (most recent call last):\n{frame}\n{error}\n")
    found = explain(attempt.run)
    assert found.failure == "unknown"
    assert found.cause.startswith("rank 2 on node2: unknown: an exception that neither the catalogue knows")
    assert error in found.proof


def test_of_two_causes_the_first_on_the_clock_of_the_driver_counts(attempt):
    """The clock of node2 is five minutes behind; a time of glog has no year."""
    clocks = [("node1", 0.0), ("node1", 0.0), ("node2", -300.0), ("node2", -300.0)]
    ranks = [{"rank": r, "host": host, "pid": r, "clock_ahead_s": s} for r, (host, s) in enumerate(clocks)]
    EventLog(attempt.events).write("group_started", restart=0, world_size=4, ranks=ranks)
    raised = RAISED.format("IndexError: Target {} is out of bounds.")
    log(attempt, 1, f"2026-11-21 00:02:00 INFO\n{raised.format(10)}")
    log(attempt, 3, f"2026-11-20 23:57:01 INFO\n{raised.format(11)}")
    found = explain(attempt.run)
    assert (found.rank, found.host) == (1, "node1")
    log(attempt, 1, f"2026-11-21 00:02:02 INFO\n{raised.format(10)}")
    found = explain(attempt.run)
    assert (found.rank, found.host) == (3, "node2")
    assert "  rank 3  00:02:01  IndexError" in found.proof
    log(attempt, 1, f"I1120 23:59:59.10 a.cc:3]\n{raised.format(10)}")
    assert explain(attempt.run).rank == 1, "midnight is between the two"


def script_ended(attempt, code, *printed):
    lines = "".join(f"\n  | {line}" for line in printed)
    text = f"f.py ended with exit code {code} on rank 1.\nIts last lines:{lines}"
    fail(attempt, text, error="ScriptFailed", exit_code=code, host="node1")
    attempt.result.write(replace(FAILED, text=text))
    log(attempt, 1, "\n".join(printed))


@pytest.mark.parametrize(
    ("code", "line"),
    [(3, "(it printed nothing)"), (1, "set DATA=/x"), (4, "[Warning] No space left on device is handled")],
)
def test_a_script_that_ended_itself_is_explained_by_its_exit_code_and_last_line(attempt, code, line):
    script_ended(attempt, code, "it began", line)
    found = explain(attempt.run)
    assert (found.failure, found.rank) == ("own_exit", 1)
    assert found.cause.startswith(f"rank 1 on node1: the script ended itself with exit code {code}, ")
    assert found.proof.endswith(f"  | {line}") and len(found.evidence) == 4
    assert summary(attempt) == []


@pytest.mark.parametrize(
    ("code", "lines", "failure"),
    [
        (4, ["error: No space left on device"], "disk_full"),
        (2, ["usage: f.py [-h]", "f.py: error: unrecognized arguments: --epoch 3"], "wrong_arguments"),
        (3, ["/a/cuda.py:9: UserWarning: The NVIDIA driver on your system is too old"], "driver_too_old"),
        (2, RAISED.format("ValueError: upside down").splitlines(), "own_exception"),
    ],
)
def test_an_error_that_a_script_printed_before_its_exit_is_the_cause(attempt, code, lines, failure):
    script_ended(attempt, code, *lines)
    assert explain(attempt.run).failure == failure


@pytest.mark.parametrize(
    ("failure", "printed", "name"),
    [
        ({"error": "signal", "text": "died of signal 9 (SIGKILL)"}, "", "killed"),
        ({"error": "signal"}, "Out of memory: Killed process 7 (python)", "memory_limit"),
        ({"error": "OutOfMemoryError", "text": "rank 1: out of GPU memory, 2 GiB"}, "", "cuda_out_of_memory"),
        ({"error": "OSError", "text": "rank 1: OSError: no known line", "entry": "s3_clock"}, "", "s3_clock"),
        (
            {"error": "OSError", "text": "rank 1: [Errno 28] No space", "entry": "later"},
            "",
            "disk_full",
        ),
    ],
)
def test_the_cause_is_what_the_record_or_the_log_of_the_rank_shows(attempt, failure, printed, name):
    fail(attempt, **{"text": "rank 1 died", "rank": 1, **failure})
    log(attempt, 1, printed)
    attempt.result.write(replace(FAILED, cause="out_of_memory"))
    assert explain(attempt.run).failure == name
    assert summary(attempt) == [], "the message of such an end has its remedy"


def test_a_rank_that_ended_before_it_began_has_no_line_of_an_earlier_start(attempt):
    log(attempt, 2, "RuntimeError: DataLoader worker (pid 7) is killed\nCUDA out of memory")
    restart = attempt.restart(1)
    restart.claim.create(sample_restart_claim())
    restart.plan.write(attempt.restart(0).plan.read())
    restart.failure.write(sample_failure(text="rank 2 died of signal 9", rank=2, error="signal", restart=1))
    assert explain(attempt.run).failure == "killed"


def test_the_end_status_and_explain_tell_a_script_the_same_which_it_can_do(attempt, capsys, tmp_path):
    """`check` rehearses no batch of a script, and the driver has matched its error already."""
    attempt.run.store.write_atomic(attempt.job_key, b"name: digits\nscript: bad.py\nstorage: runs\n")
    line = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x10 and 12x3)"
    text = f"rank 0, bad.py:4: {line}\nbad.py ended with exit code 1."
    fail(attempt, text, rank=0, error="ScriptFailed", exit_code=1, entry="wrong_shape")
    log(attempt, 0, RAISED.format(line))
    finish(attempt.run, write_result(attempt, replace(FAILED, text=text)), UNKNOWN)
    at_end = capsys.readouterr().out.splitlines()[-3:]
    status = CliRunner().invoke(main, ["status", str(tmp_path / "digits")]).output.splitlines()[-3:]
    explained = [*explain(attempt.run).lines()][:3]
    assert (
        at_end
        == explained
        == [f"{row.split()[0]}: ".ljust(8) + row[len("attempt  ") :].strip() for row in status]
    )
    assert explained[2] == "change: Compare the shape of a batch with the model's `args`."


def test_the_earlier_failures_of_an_attempt_are_named(attempt):
    fail(attempt, "rank 1: OSError: [Errno 5] Input/output error", error="OSError")
    later = attempt.restart(1)
    later.claim.create(sample_restart_claim())
    later.failure.write(
        sample_failure(text="rank 1: OSError: [Errno 28] No space", error="OSError", restart=1)
    )
    found = explain(attempt.run)
    assert found.failure == "disk_full"
    assert found.earlier == ("start 0: rank 1: OSError: [Errno 5] Input/output error",)


def test_without_workers_the_log_of_the_driver_decides(run):
    attempt = run.attempt(1)
    attempt.claim.create(sample_claim(allocation=SchedulerStart("slurm", "12")))
    attempt.result.write(Result("failed", "driver_died", 1, "The driver ended with code 71."))
    assert explain(attempt.run).failure == "unknown"
    attempt.driver_log.parent.mkdir(parents=True)
    attempt.driver_log.write_text("ModuleNotFoundError: No module named 'ray'\n")
    assert explain(attempt.run).failure == "no_module"


def test_a_run_whose_processes_are_gone_is_explained_by_its_last_signs(run):
    attempt = run.attempt(1)
    gone = replace(this_process(), pid=2**22 + 1)  # above the largest pid of Linux
    attempt.claim.create(sample_claim(gone))
    EventLog(attempt.events).write("ray_started", seconds=4.0)
    (_, text) = summary(attempt)[1]
    assert "; last event 20" in text and "last sign: its claim, " in text
    attempt.heartbeat.write(Beat(**asdict(gone), time=1000.0, counter=7))
    attempt.restart(0).claim.create(sample_restart_claim())
    found = explain(attempt.run)
    assert (found.failure, found.host) == ("vanished", "")
    assert f"pid {gone.pid} on {socket.gethostname()} is gone" in found.proof
    assert "last heartbeat 1970-01-01 " in found.proof
    rows = CliRunner().invoke(main, ["status", run.uri]).output.splitlines()
    assert [row.split()[0] for row in rows[-3:]] == ["cause", "proof", "change"]
    EventLog(attempt.events).write("warning", text="memory of this node: Out of memory: Killed process 7")
    assert explain(attempt.run).failure == "memory_limit"


@pytest.mark.parametrize(("state", "cause", "code"), [("done", "finished", 0), ("stopped", "user", 75)])
def test_without_a_failure_there_is_nothing_to_explain(attempt, state, cause, code):
    attempt.result.write(Result(state, cause, code))
    assert explain(attempt.run).cause.startswith("none: ")
    assert summary(attempt) == []


def test_a_log_is_printed_without_what_changes_a_terminal(attempt, tmp_path):
    fail(attempt, "rank 1: OSError: [Errno 28] \x1b]0;title\x07 No space left on device", error="OSError")
    shown = CliRunner().invoke(main, ["explain", str(tmp_path / "digits")]).output
    assert "disk_full" in shown
    assert "\x1b" not in shown


# ------------------------------------------------------------------------------------------------ stacks


@pytest.fixture
def running(run):
    """Four ranks, of which the last is this process."""
    attempt = run.attempt(1)
    attempt.claim.create(sample_claim(this_process()))
    restart = attempt.restart(0)
    restart.claim.create(sample_restart_claim())
    ranks = [{"rank": r, "host": socket.gethostname(), "pid": os.getpid()} for r in range(4)]
    EventLog(attempt.events).write("group_started", restart=0, world_size=4, ranks=ranks)
    return attempt


def test_ranks_that_do_not_answer_come_first_then_the_smallest_group(running):
    start = StartEvidence.newest(running)
    thread = 'Thread (most recent call first):\n  File "/env/ray/a.py", line 1 in poll\n\nThread (most'
    begun = '  File "/env/ray/b.py", line 2 in train_loop_per_worker'
    torch = f'{thread}\n  File "/env/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
    waits = f'{torch}  File "/job/task.py", line 9 in loss\n{begun}\n'
    reads = f'{thread}\n  File "/job/task.py", line 7 in read\n{begun}\n'
    groups = grouped(start, {0: waits, 1: reads, 2: waits})
    assert [group.ranks for group in groups] == [(3,), (1,), (0, 2)]
    assert [group.ranks for group in grouped(start, {0: waits, 1: reads})][2:] == [(1,), (0,)]
    shown = [line for group in groups for line in group.lines()]
    assert shown[0].startswith("rank 3 did not answer")
    assert shown[0].endswith(f"(pid {os.getpid()} on {socket.gethostname()})")
    assert "    job/task.py:7 in read" in shown
    assert len(stacks_now(start, wait_s=0.1)) == 4


@pytest.mark.parametrize("lives", [True, False])
def test_without_workers_there_are_no_stacks(running, run, lives):
    if lives:
        running = run.attempt(2)
    ticks = this_process().pid_started_ticks if lives else 1
    running.claim.write(sample_claim(replace(this_process(), pid_started_ticks=ticks)))
    with pytest.raises(JobError, match=r"No workers of .* are running, so there are no stacks"):
        stacks_now(StartEvidence.newest(running))
    result = CliRunner().invoke(main, ["stacks", run.uri])
    assert (result.exit_code, "No workers" in result.output) == (2, True)
    assert not lives or explain(run).cause == "none yet: digits waits for its workers"


def test_the_stacks_of_a_script_are_those_that_py_spy_shows(running):
    running.run.store.write_atomic(running.job_key, b"name: digits\nscript: a.py\nstorage: runs\n")
    with pytest.raises(JobError, match=r"exec .*digits/g1 --rank K -- sh -c 'py-spy dump -s --pid \$CLUST"):
        stacks_now(StartEvidence.newest(running))
    found = explain(running.run)
    assert (found.cause, found.stacks) == ("none: digits is running", ())
    assert "py-spy dump -s" in found.change
