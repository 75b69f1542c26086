"""Stores: small files that are whole or not there, whoever else is at it."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clustertrain.errors import JobError, StorageError
from clustertrain.storage import PosixStore, open_store, posix, probe
from kills import killed_at_every_point


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


def test_what_is_written_is_read(store):
    assert store.read_or_none("a/b/c") is None
    store.write_atomic("a/b/c", b"one")
    store.write_atomic("a/b/c", b"two")
    assert store.read_or_none("a/b/c") == b"two"
    assert store.list("a/b") == ["c"]
    assert store.list("") == ["a"]
    assert store.list("nothing") == []
    assert store.list("a/b/c") == []
    assert store.read_or_none("a/b/c/d") is None
    assert Path(store.uri("a/b/c")).read_bytes() == b"two"
    store.remove("a/b/c")
    store.remove("a/b/c")
    assert store.list("a/b") == []


def test_unfinished_files_are_not_listed(store):
    store.write_atomic("a/b", b"")
    (Path(store.uri("a")) / ".c.tmp").write_bytes(b"torn")
    assert store.list("a") == ["b"]


def test_exactly_one_creates(store):
    for round_number in range(20):
        barrier = threading.Barrier(8)
        won = []

        def create(me, key=f"claims/{round_number}", barrier=barrier, won=won):
            barrier.wait()
            if store.create_exclusive(key, me * 100):
                won.append(me)

        threads = [threading.Thread(target=create, args=(bytes([n]),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.read_or_none(f"claims/{round_number}") == won[0] * 100


def test_a_link_whose_answer_was_lost_is_our_own(store, monkeypatch):
    """NFS: the link is made, the answer is lost, and the repeated request finds the name taken."""
    real_link = os.link

    def link_twice(source, target):
        real_link(source, target)
        real_link(source, target)

    monkeypatch.setattr(posix.os, "link", link_twice)
    assert store.create_exclusive("a", b"mine")
    monkeypatch.undo()
    assert not store.create_exclusive("a", b"other")
    assert store.read_or_none("a") == b"mine"


def test_a_kill_leaves_the_old_bytes_or_the_new_ones(store):
    def prepare():
        store.write_atomic("a", b"old")

    seen = set()
    for _ in killed_at_every_point(prepare, lambda: store.write_atomic("a", b"new")):
        seen.add(store.read_or_none("a"))
        assert store.list("") == ["a"]
    assert seen == {b"old", b"new"}
    assert store.read_or_none("a") == b"new"


def test_a_kill_leaves_a_whole_new_file_or_none(store):
    seen = set()
    for _ in killed_at_every_point(lambda: store.remove("a"), lambda: store.create_exclusive("a", b"new")):
        seen.add(store.read_or_none("a"))
    assert seen == {None, b"new"}


def test_stale_handles_are_looked_up_again():
    answers = [OSError(errno.ESTALE, "Stale file handle")] * 3 + ["found"]

    def look():
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert posix.again_when_stale(look) == "found"


def test_other_faults_are_not_tried_again(tmp_path):
    calls = []

    def look():
        calls.append(1)
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        posix.again_when_stale(look)
    assert len(calls) == 1


def test_open_store_takes_paths_and_file_uris(tmp_path):
    assert open_store(str(tmp_path)) == open_store(f"file://{tmp_path}") == PosixStore(tmp_path)
    assert open_store("runs").uri("") == str(Path.cwd() / "runs")
    assert open_store("file:///a%20b").uri("c") == "/a b/c"


@pytest.mark.parametrize("uri", ["s3://bucket/runs", "gs://bucket", "file://other-host/runs"])
def test_open_store_refuses_what_it_does_not_know(uri):
    with pytest.raises(JobError, match=r"Give a path that every node sees") as refusal:
        open_store(uri)
    assert refusal.value.exit_code == 2


def test_probe_leaves_nothing(store):
    probe(store)
    assert list(Path(store.uri("")).iterdir()) == []


def test_probe_names_path_user_and_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as refusal:
        probe(open_store(str(tmp_path / "file" / "runs")))
    text = str(refusal.value)
    assert f"{tmp_path}/file/runs" in text
    assert f"uid {os.geteuid()}" in text
    assert "Not a directory" in text
    assert text.count("\n") == 1
    assert refusal.value.exit_code == 4


PROBE_AS = """
import os, sys
import clustertrain.storage as storage
from clustertrain.errors import StorageError
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
try:
    storage.probe(storage.open_store(sys.argv[1]))
except StorageError as error:
    print(error)
"""


def test_probe_says_which_user_may_not_write(tmp_path):
    tmp_path.chmod(0o555)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", PROBE_AS, str(tmp_path / "runs")], capture_output=True, text=True, check=True
    )
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    assert f"created by uid {uid}: Permission denied" in done.stdout
    assert str(tmp_path / "runs") in done.stdout
    assert "Give that user access" in done.stdout


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EPERM, "hard links"),
    ],
)
def test_the_remedy_fits_what_the_system_said(store, monkeypatch, number, remedy):
    def refuse(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(posix.os, "link", refuse)
    with pytest.raises(StorageError, match=remedy) as refusal:
        store.create_exclusive("a", b"")
    assert os.strerror(number) in str(refusal.value)
    assert list(Path(store.uri("")).iterdir()) == []
