"""Streams of a run whose storage is S3: written here, sent up in pieces, read by anyone."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.streams import stream_upload
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.events import new_records
from clustertrain.run_files.streams.history import AttemptFollower, events_of_attempt
from clustertrain.run_files.streams.step_counter import Reached, reached_step
from clustertrain.run_files.streams.stream_upload import StreamUpload, send_leftovers
from clustertrain.run_files.streams.streams import Tail, part_key
from support.fault_proxy import FaultProxy
from support.waiting import wait_until


@pytest.fixture
def run(moto_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return RunDir.newest(moto_s3.location("runs"), "digits")


@pytest.fixture
def elsewhere(run, tmp_path, monkeypatch):
    """The same run as another machine sees it, which has nothing of it on its disk."""

    def look(read):
        with monkeypatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
            return read(run)

    return look


def test_what_grows_here_is_read_elsewhere_line_by_line(run, elsewhere, monkeypatch):
    monkeypatch.setattr(stream_upload, "SEND_EVERY_S", 0.05)
    attempt, said = run.attempt(1), []
    log = EventLog(attempt.events)
    with StreamUpload(attempt, said.append):
        for number in range(3):
            log.write("note", number=number)
            wait_until(lambda number=number: len(run.store.list(f"{attempt.events_key}.d")) > number, 30)
        tail = Tail(run.on_this_node, attempt.events_key)
        assert [e["number"] for e in new_records(tail)] == [0, 1, 2]
        log.write("note", number=3)
    assert not attempt.path.exists()  # all of it went up
    assert [e["number"] for e in elsewhere(lambda r: events_of_attempt(r.attempt(1)))] == [0, 1, 2, 3]
    assert said == []


def test_a_reader_continues_after_the_file_was_uploaded(run):
    attempt = run.attempt(1)
    path = attempt.driver_log
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one\ntwo")
    tail = Tail(run, f"{attempt.key}/logs/driver.log")
    assert b"".join(tail.new()) == b"one\ntwo"
    with StreamUpload(attempt, pytest.fail), path.open("ab") as file:
        file.write(b"\nthree")
    assert b"".join(tail.new()) == b"\nthree"
    assert b"".join(tail.new()) == b""


def test_the_end_of_a_node_leaves_the_streams_of_another_one_in_their_home_folder(run, monkeypatch):
    """On most clusters all nodes have the home folder of the user, and so the cache in it."""
    attempt = run.attempt(1)
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    of_head, brought = EventLog(attempt.events), attempt.checkpoint_copy
    of_head.write("note", number=0)
    monkeypatch.setattr(socket, "gethostname", lambda: "n2")
    assert attempt.checkpoint_copy != brought
    with StreamUpload(attempt, pytest.fail):
        EventLog(attempt.node_events("n2")).write("note", number=1)
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    of_head.write("note", number=2)
    with StreamUpload(attempt, pytest.fail):
        pass
    assert [each["number"] for each in events_of_attempt(attempt)] == [0, 1, 2]


def test_two_that_send_at_once_send_each_byte_once(run):
    attempt = run.attempt(1)
    attempt.driver_log.parent.mkdir(parents=True)

    def write_and_send(lines):
        for line in lines:
            file.write(line)
            StreamUpload(attempt, pytest.fail).send(5.0)

    written = [[f"{sender} {number}\n".encode() for number in range(10)] for sender in range(4)]
    with attempt.driver_log.open("ab", buffering=0) as file, ThreadPoolExecutor() as pool:
        list(pool.map(write_and_send, written))
    attempt.driver_log.unlink()
    sent = Tail(run, f"{attempt.key}/logs/driver.log").new_lines()
    assert sorted(line + b"\n" for line in sent) == sorted(line for lines in written for line in lines)


def test_a_home_folder_without_locks_is_sent(run, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with StreamUpload(run.attempt(1), pytest.fail):
        EventLog(run.attempt(1).events).write("note", number=0)
    assert [e["number"] for e in events_of_attempt(run.attempt(1))] == [0]


def test_a_large_stream_goes_up_in_pieces(run):
    attempt = run.attempt(1)
    data = os.urandom(9 << 20)
    attempt.driver_log.parent.mkdir(parents=True)
    attempt.driver_log.write_bytes(data)
    with StreamUpload(attempt, pytest.fail):
        pass
    key = f"{attempt.key}/logs/driver.log"
    assert run.store.list(f"{key}.d") == ["000001", "000002"]
    assert b"".join(Tail(run, key).new()) == data


def test_a_stream_may_have_more_than_a_million_pieces(run):
    key = f"{run.attempt(1).key}/logs/driver.log"
    for number in (999_998, 999_999, 1_000_000, 1_000_001):
        run.store.write_atomic(part_key(key, number), f"{number} ".encode())
    assert b"".join(Tail(run, key).new()) == b"999998 999999 1000000 1000001 "


def test_a_file_that_takes_long_to_send_is_sent_less_often(run, monkeypatch):
    monkeypatch.setattr(stream_upload, "WHOLE_EVERY_S", 0.0)
    monkeypatch.setattr(stream_upload, "WHOLE_SHARE", 1e6)
    attempt, key = run.attempt(1), f"{run.key}/tensorboard/events.out"
    attempt.tensorboard.mkdir(parents=True)
    upload = StreamUpload(attempt, pytest.fail)
    for data, at_end, sent in ((b"1", False, b"1"), (b"12", False, b"1"), (b"123", True, b"123")):
        (attempt.tensorboard / "events.out").write_bytes(data)
        upload.send(5.0, at_end=at_end)
        assert run.store.read_or_none(key) == sent


def test_what_readers_cannot_join_goes_up_whole(run, elsewhere):
    attempt = run.attempt(1)
    attempt.tensorboard.mkdir(parents=True)
    (attempt.tensorboard / "events.out").write_bytes(b"curve")
    reached = Reached(attempt.restart(0).reached)
    reached.set(17)
    key = attempt.restart(0).profile_key(1)
    profile = run.local_path(key)
    profile.parent.mkdir(parents=True)
    profile.write_bytes(b"trace")
    profile.with_name(f".{profile.name}").write_bytes(b"unfinished")
    with StreamUpload(attempt, pytest.fail):
        pass
    reached.close()
    later = run.attempt(2)
    later.tensorboard.mkdir(parents=True)
    (later.tensorboard / "events.out.2").write_bytes(b"more")
    with StreamUpload(later, pytest.fail):
        pass
    assert run.store.list(key.rpartition("/")[0]) == ["rank-1.pt.trace.json.gz"]
    assert run.store.list(run.tensorboard_key) == ["events.out", "events.out.2"]  # one curve
    assert run.store.read_or_none(f"{run.key}/tensorboard/events.out") == b"curve"
    assert elsewhere(lambda r: reached_step(attempt.restart(0))) == 17


def test_an_outage_is_reported_once_and_loses_nothing(moto_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stream_upload, "SEND_EVERY_S", 0.05)
    monkeypatch.setattr(stream_upload, "SHORT_RETRY_S", 0.1)
    said = []
    with FaultProxy(moto_s3.endpoint) as proxy:
        run = RunDir.newest(moto_s3.through(proxy.endpoint).location("runs"), "digits")
        attempt = run.attempt(1)
        proxy.down()
        with StreamUpload(attempt, said.append):
            EventLog(attempt.events).write("note", number=0)
            wait_until(lambda: said, 30)
            proxy.up()
        assert [e["number"] for e in events_of_attempt(attempt)] == [0]
        assert not attempt.path.exists()
    (text,) = said
    assert "logs stay on this node" in text


def test_what_cannot_be_uploaded_is_kept_for_the_next_start(moto_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stream_upload, "LAST_RETRY_S", 0.1)
    said = []
    with FaultProxy(moto_s3.endpoint) as proxy:
        run = RunDir.newest(moto_s3.through(proxy.endpoint).location("runs"), "digits")
        attempt = run.attempt(1)
        with StreamUpload(attempt, said.append):
            EventLog(attempt.events).write("note", number=0)
            proxy.down()
        assert str(attempt.path) in said[0]
        proxy.up()
        send_leftovers(run, pytest.fail)
        assert not attempt.path.exists()
        assert [e["number"] for e in events_of_attempt(attempt)] == [0]


_SENDER = """
import sys
from clustertrain.run_files.streams import stream_upload
from clustertrain.run_files.attempt_ref import AttemptRef
stream_upload.SEND_EVERY_S = 0.02
attempt = AttemptRef.from_text(sys.argv[1]).open()
with stream_upload.StreamUpload(attempt, print):
    print("sends", flush=True)
    sys.stdin.read()
"""


def test_a_killed_sender_is_followed_by_another_without_a_gap(run):
    from clustertrain.run_files.attempt_ref import AttemptRef

    attempt = run.attempt(1)
    log = EventLog(attempt.events)
    follower = AttemptFollower(run.attempt(1))
    for number in range(20):
        log.write("note", number=number)
    sender = subprocess.Popen(
        [sys.executable, "-c", _SENDER, AttemptRef.of(attempt).to_text()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with sender:
        wait_until(lambda: run.store.list(f"{attempt.events_key}.d"), 30)
        sender.send_signal(signal.SIGKILL)
    for number in range(20, 25):
        log.write("note", number=number)
    send_leftovers(run, pytest.fail)
    assert not attempt.path.exists()
    assert [e["number"] for e in events_of_attempt(attempt)] == list(range(25))
    assert [e["number"] for e in follower.new()] == list(range(25))
