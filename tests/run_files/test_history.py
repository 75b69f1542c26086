import json
import multiprocessing
import resource
from pathlib import Path

import pytest

from clustertrain.run_files.records.claim import ResumePoint
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.events import new_records, read_events
from clustertrain.run_files.streams.history import (
    _STREAMS_PER_LOOK,
    AttemptFollower,
    curve,
    events_of_attempt,
)
from clustertrain.run_files.streams.step_counter import Reached, reached_step
from clustertrain.run_files.streams.streams import Tail
from support.sample_records import sample_restart_claim


def train(run, attempt, restart, resumed_at, steps, **plan):
    """What a start of the group leaves: its claim, its plan and its metrics."""
    a = run.attempt(attempt)
    a.restart(restart).claim.create(sample_restart_claim())
    a.restart(restart).plan.write(ResumePoint(None, resumed_at, 1, **plan))
    for step in steps:
        loss = 1000 * attempt + 100 * restart + step
        EventLog(a.restart(restart).metrics).write("train", step=step, loss=loss)


@pytest.mark.parametrize(
    ("starts", "losses"),
    [
        ([(1, 0, 0, [10, 20, 30]), (1, 1, 20, [30, 40]), (2, 0, 35, [40])], [1010, 1020, 1130, 2040]),
        ([(1, 0, 0, [10, 20]), (1, 1, 20, [20, 30])], [1010, 1120, 1130]),  # with what follows step 20
        ([(1, 0, 0, [10, 20]), (1, 1, 0, [5])], [1105]),
    ],
)
def test_redone_steps_are_shown_once_and_by_their_last_doing(run, starts, losses):
    for start in starts:
        train(run, *start)
    assert [record["loss"] for record in curve(run)] == losses


def test_a_script_continues_before_the_first_step_that_it_logs(run):
    train(run, 1, 0, 0, [10, 20, 30], of_script=True)
    train(run, 1, 1, 0, [], of_script=True)
    train(run, 2, 0, 0, [25, 35], of_script=True)
    assert [(r["step"], r["loss"]) for r in curve(run)] == [(10, 1010), (20, 1020), (25, 2025), (35, 2035)]


def test_a_start_that_died_before_its_plan_supersedes_nothing(run):
    train(run, 1, 0, 0, [10])
    run.attempt(1).restart(1).claim.create(sample_restart_claim())
    assert [r["step"] for r in curve(run)] == [10]


def test_events_of_all_nodes_are_in_order_of_time(run):
    attempt = run.attempt(1)
    for path in (attempt.events, attempt.node_events("a"), attempt.node_events("b"), attempt.events):
        EventLog(path).write("note", text=path.name)
    names = ["events.jsonl", "events-a.jsonl", "events-b.jsonl", "events.jsonl"]
    assert [each["text"] for each in events_of_attempt(attempt)] == names


@pytest.fixture
def of_100_nodes(run):
    """An attempt with a stream of each of a hundred nodes."""
    for node in range(100):
        EventLog(run.attempt(1).node_events(f"node{node}")).write("note", number=node)
    return run.attempt(1)


def test_a_look_reads_some_streams_of_many_and_loses_none(of_100_nodes, monkeypatch):
    opened = []
    real = Tail.new
    monkeypatch.setattr(Tail, "new", lambda tail: opened.append(tail) or real(tail))
    follower = AttemptFollower(of_100_nodes)
    found = [record["number"] for _ in range(4) for record in follower.new()]
    assert sorted(found) == list(range(100))
    assert len(opened) <= 4 * _STREAMS_PER_LOOK
    assert len(set(opened)) == 100


def test_the_last_look_reads_all_streams(of_100_nodes):
    follower = AttemptFollower(of_100_nodes)
    follower.new()
    EventLog(of_100_nodes.node_events("node7")).write("note", number=100)
    EventLog(of_100_nodes.restart(0).metrics).write("train", step=1)
    numbers = {record.get("number") for record in follower.new(of_all=True)}
    assert {100, None} <= numbers
    assert follower.new(of_all=True) == []


def test_the_mapped_step_counts_where_it_is_ahead_of_the_curve(run):
    train(run, 1, 0, 0, [10])
    a = run.attempt(1)
    assert reached_step(a.restart(0)) == 10
    reached = Reached(a.restart(0).reached)
    reached.set(13)
    assert reached_step(a.restart(0)) == 13
    reached.close()
    assert reached_step(a.restart(0)) == 13
    assert reached_step(a.restart(5)) == 0


KEY = "digits/g1/events.jsonl"


@pytest.fixture
def path(run):
    path = run.local_path(KEY)
    path.parent.mkdir(parents=True)
    return path


def test_a_full_disk_loses_lines_and_ends_nothing(run, path):
    EventLog(Path("/dev/full")).write("train", step=3, loss=0.5)
    path.write_bytes(b"")
    with pytest.raises(FileExistsError):
        EventLog(path / "events.jsonl").write("note", text="x")


def test_a_line_that_a_full_disk_cuts_does_not_take_the_next_one_with_it(run, path):
    log = EventLog(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        log.write("note", text="cut")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for text in ("next", "last"):
        log.write("note", text=text)
    assert [record["text"] for record in read_events(run, KEY)] == ["next", "last"]


def test_a_line_on_its_way_waits_for_its_end(run, path):
    line = json.dumps({"kind": "note", "time": 1.0, "text": "x"}).encode() + b"\n"
    path.write_bytes(line + line[:10])
    tail = Tail(run, KEY)
    assert len(list(new_records(tail))) == 1
    with path.open("ab") as file:
        file.write(line[10:] + line)
    assert len(list(new_records(tail))) == 2
    assert list(new_records(tail)) == []


def test_a_broken_line_hides_no_other(run, path):
    EventLog(path).write("note", text="before")
    with path.open("ab") as file:
        file.write(b'{"kind": "no\xff\n[1]\n{}\n')
    EventLog(path).write("note", text="after")
    assert [event["text"] for event in read_events(run, KEY)] == ["before", "after"]


def _write_many(path, writer):
    for number in range(200):
        EventLog(path).write("note", text="x" * 500, writer=writer, number=number)


@pytest.mark.slow
def test_lines_of_several_processes_never_mix(run, path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(path, writer)) for writer in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    events = read_events(run, KEY)
    assert len(events) == 600
    for writer in range(3):
        assert [e["number"] for e in events if e["writer"] == writer] == list(range(200))
