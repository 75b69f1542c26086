import json
import multiprocessing
import resource
from pathlib import Path

import pytest

from clustertrain.run.streams.event_log import EventLog
from clustertrain.run.streams.events import new_records, read_events
from clustertrain.run.streams.streams import Tail

KEY = "digits/g1/events.jsonl"


@pytest.fixture
def path(run):
    path = run.local_path(KEY)
    path.parent.mkdir(parents=True)
    return path


def test_what_is_written_is_read(run):
    log = EventLog(run.local_path(KEY))
    log.write("checkpoint", step=3, name="3-1.0")
    log.write("warning", text="two\nlines")
    first, second = read_events(run, KEY)
    assert (first["kind"], first["step"], second["text"]) == ("checkpoint", 3, "two\nlines")
    assert first["time"] <= second["time"]


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


def test_no_stream_is_no_events(run):
    assert read_events(run, KEY) == []


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
