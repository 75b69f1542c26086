import json
import multiprocessing

from clustertrain.observe.events import EventLog, Follower, read_events


def test_what_is_written_is_read(tmp_path):
    log = EventLog(tmp_path / "deep" / "events.jsonl")
    log.write("checkpoint", step=3, name="3-1.0")
    log.write("warning", text="two\nlines")
    first, second = read_events(tmp_path / "deep" / "events.jsonl")
    assert (first["kind"], first["step"], second["text"]) == ("checkpoint", 3, "two\nlines")
    assert first["time"] <= second["time"]


def test_no_stream_is_no_events(tmp_path):
    assert read_events(tmp_path / "absent.jsonl") == []


def test_a_line_on_its_way_waits_for_its_end(tmp_path):
    path = tmp_path / "events.jsonl"
    line = json.dumps({"kind": "note", "time": 1.0, "text": "x"}).encode() + b"\n"
    path.write_bytes(line + line[:10])
    follower = Follower(path)
    assert len(list(follower.new())) == 1
    with path.open("ab") as file:
        file.write(line[10:] + line)
    assert len(list(follower.new())) == 2
    assert list(follower.new()) == []


def test_a_broken_line_hides_no_other(tmp_path):
    path = tmp_path / "events.jsonl"
    EventLog(path).write("note", text="before")
    with path.open("ab") as file:
        file.write(b'{"kind": "no\xff\n[1]\n{}\n')
    EventLog(path).write("note", text="after")
    assert [event["text"] for event in read_events(path)] == ["before", "after"]


def _write_many(path, writer):
    for number in range(200):
        EventLog(path).write("note", text="x" * 500, writer=writer, number=number)


def test_lines_of_several_processes_never_mix(tmp_path):
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(path, writer)) for writer in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    events = read_events(path)
    assert len(events) == 600
    for writer in range(3):
        assert [e["number"] for e in events if e["writer"] == writer] == list(range(200))
