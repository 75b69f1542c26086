"""The output of rank 0 in a log that grows, on a screen."""

import io
import time

import pytest

from clustertrain.job.file import parse_job
from clustertrain.observe import screen as screens
from clustertrain.observe.display import Display
from clustertrain.observe.rank_output import RankOutput
from clustertrain.observe.screen import Bar, Lines
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.rank_log import OUTPUT_BEGINS, OUTPUT_ENDS, start_line
from clustertrain.run_files.streams.stream_upload import StreamUpload


@pytest.fixture
def attempt(tmp_path):
    return claim_attempt(RunDir.newest(str(tmp_path), "digits"))


def started(attempt, host="node1", world_size=2, restart=0):
    ranks = [{"rank": rank, "host": host, "pid": 1} for rank in range(world_size)]
    EventLog(attempt.events).write("group_started", restart=restart, world_size=world_size, ranks=ranks)
    return [{"kind": "group_started", "ranks": ranks, "world_size": world_size}]


def prints(attempt, text, host="node1"):
    log = attempt.rank_log(host, 0)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


BEGUN = f"{start_line(0)}\nSetting up process group for: env://\n{OUTPUT_BEGINS}\n"


def test_only_what_the_code_prints_is_output(attempt):
    output = RankOutput(attempt)
    assert output.new() == ([], [])
    output.follow(started(attempt))
    assert output.new() == ([], [])  # no log yet
    prints(attempt, BEGUN + "one\n")
    assert output.new() == (["one"], [])
    prints(attempt, "\r 10%")
    assert output.new() == ([], [" 10%"])
    prints(attempt, "\r 20%")
    assert output.new() == ([], [" 20%"])
    prints(attempt, f"{OUTPUT_ENDS}\nTraceback (most recent call last):\n")
    assert output.new() == ([" 20%"], [])
    assert output.rest() == []


def test_a_line_of_the_kit_below_nested_bars_is_not_shown(attempt):
    output = RankOutput(attempt)
    output.follow(started(attempt))
    prints(attempt, f"{BEGUN}\router\n\rinner\x1b[A")
    assert output.new() == ([], ["outer"])
    prints(attempt, f"{OUTPUT_ENDS}\n")
    assert output.new() == (["outer"], [])
    assert output.rest() == []


def test_a_restart_continues_in_the_same_log_or_on_another_host(attempt):
    output = RankOutput(attempt)
    output.follow(started(attempt))
    prints(attempt, BEGUN + "one\nkilled at 7")
    assert output.new() == (["one"], ["killed at 7"])
    prints(attempt, f"{start_line(1)}\nof Ray\n{OUTPUT_BEGINS}\ntwo\n")
    assert output.new() == (["killed at 7", "two"], [])
    output.follow(started(attempt, host="node2", restart=2))
    prints(attempt, BEGUN + "three", host="node2")
    assert output.new() == ([], ["three"])
    assert output.rest() == ["three"]


def test_a_log_on_another_machine_is_read_in_the_pieces_that_have_arrived(moto_s3, tmp_path, monkeypatch):
    attempt = claim_attempt(RunDir.newest(moto_s3.location("runs"), "digits"))

    def prints_there(text):
        with monkeypatch.context() as there:
            there.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
            prints(attempt, text)
            StreamUpload(attempt, print).send(5.0)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    output = RankOutput(attempt)
    output.follow(started(attempt))
    prints_there(BEGUN + "one\n")
    assert output.new() == (["one"], [])
    prints_there("two\nthree")
    assert output.new() == ([], [])  # each look is a request: not ten times a second
    assert output.rest() == ["two", "three"]


def script(attempt, entry_point="script: train.py"):
    record_job(attempt, parse_job(f"name: digits\n{entry_point}\n", "job.yaml"))


def display_of(attempt, stream):
    return Display(attempt, Lines(stream), CommandLine(job_file="job.yaml", sets=("name=digits",)))


def test_a_log_file_gets_finished_lines_and_a_bar_from_time_to_time(attempt, monkeypatch):
    script(attempt)
    stream = io.StringIO()
    display = display_of(attempt, stream)
    started(attempt)
    display.update()
    assert display.is_training
    logs = "clustertrain logs job.yaml --set name=digits --rank 1"
    where = f"rank 0 prints here; the output of rank 1, and so on: `{logs}`"
    assert stream.getvalue().splitlines() == ["2 workers started"]
    prints(attempt, BEGUN + "one\n")
    for percent in range(50):
        prints(attempt, f"\r{percent}%")
        display.update()
    assert stream.getvalue().splitlines()[1:] == [where, "one"]
    now = time.monotonic()
    monkeypatch.setattr(screens.time, "monotonic", lambda: now + screens.UNFINISHED_PERIOD_S + 1)
    display.update()
    prints(attempt, "\r50%")
    display.update()
    assert stream.getvalue().splitlines()[2:] == ["one", "49%"]
    for periods in (2, 3):  # a state that stays is not repeated
        later = now + periods * (screens.UNFINISHED_PERIOD_S + 1)
        monkeypatch.setattr(screens.time, "monotonic", lambda later=later: later)
        display.update()
    assert stream.getvalue().splitlines()[4:] == ["50%"]
    prints(attempt, "\r100%\ntwo\nthe rest")
    display.update(is_last=True)
    assert stream.getvalue().splitlines()[5:] == ["100%", "two", "the rest"]


def test_a_character_that_the_locale_does_not_have_is_escaped():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Lines(stream).output(["50%|█"], [])
    assert raw.getvalue() == b"50%|\\u2588\n"


def test_on_a_terminal_the_unfinished_line_moves_below_the_finished_ones(capsys):
    bar = Bar()
    bar.output(["one"], ["50%|###"])
    assert str(bar.moving) == "50%|###"  # the code shows its progress itself
    bar.show([{"kind": "train", "time": 0.0, "step": 1, "total_steps": 9}])
    assert str(bar.moving) == "50%|###\nstep 1/9"
    bar.output(["two"], [])
    assert str(bar.moving) == "step 1/9"
    bar.close()
    assert "one\ntwo\n" in capsys.readouterr().out
