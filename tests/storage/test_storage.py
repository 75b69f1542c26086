"""Stores: a small file is complete or absent, also with concurrent writers."""

import errno
import hashlib
import os
import pickle
import random
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from clustertrain.errors import JobError, StorageError
from clustertrain.storage import PosixStore, open_store, posix, posix_tree, probe
from support.kills import killed_at_every_point
from support.s3_servers import ENVIRONMENT, SERVERS

MARKER = "DONE"


def any_tree(name):
    """Whether the writer of a tree is over, if all are."""
    return True


@pytest.fixture
def posix_store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture(params=["posix", *SERVERS])
def store(request):
    """One suite for every store: what holds of one holds of all."""
    if request.param == "posix":
        return request.getfixturevalue("posix_store")
    return open_store(request.getfixturevalue(f"{request.param}_s3").location("some/runs"))


def make_tree(store, key, **files):
    tree = store.new_tree(key)
    for name, data in files.items():
        with tree.create(name) as file:
            file.write(data)
    tree.commit(MARKER, b"done")
    return tree


def contents(store, key):
    return b"".join(store.blocks(key))


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
    store.remove("a/b/c")
    store.remove("a/b/c")
    assert store.read_or_none("a/b/c") is None
    assert store.list("a/b") == []


def test_a_tree_that_several_processes_write_appears_complete(store):
    """The first begins and commits it, and passes its handle to the others."""
    tree = store.new_tree("trees/parts")
    other = store.join_tree("trees/parts", tree.handle)
    for writer, name in ((tree, "0"), (other, "1")):
        with writer.create(name) as file:
            file.write(name.encode() * 3)
    assert store.read_or_none(f"trees/parts/{MARKER}") is None
    tree.files.update(other.files)
    tree.commit(MARKER, b"done")
    assert contents(store, "trees/parts/0") + contents(store, "trees/parts/1") == b"000111"
    assert store.read_or_none(f"trees/parts/{MARKER}") == b"done"


def test_the_location_leads_back_to_the_store(store):
    """What other processes are given; it holds no credentials."""
    store.write_atomic("a", b"1")
    again = open_store(pickle.loads(pickle.dumps(store.location)))
    assert (again, hash(again), again.read_or_none("a")) == (store, hash(store), b"1")
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in repr(again)
    assert again != open_store(replace(store.location, uri=store.uri("b")))
    assert store.uri("a") == f"{store.location.uri}/a"


def test_names_of_the_store_itself_are_not_listed(store):
    store.write_atomic("a/.newest", b"")
    store.write_atomic("a/b", b"")
    store.write_atomic("a/c/d", b"")
    store.write_atomic("a/.e/f", b"")
    assert store.list("a") == ["b", "c"]


def test_an_empty_file_and_one_of_many_blocks_come_back_in_order(store):
    data = random.Random(1).randbytes(1_000_003)
    store.write_atomic("empty", b"")
    store.write_atomic("many", data)
    assert (store.read_or_none("empty"), contents(store, "empty"), store.size_or_none("empty")) == (
        b"",
        b"",
        0,
    )
    blocks = list(store.blocks("many", block_bytes=1 << 16))
    assert b"".join(blocks) == data
    assert max(map(len, blocks)) <= 1 << 16
    assert store.size_or_none("many") == len(data)


def test_what_is_not_there_has_no_size_and_no_blocks(store):
    store.write_atomic("a", b"")
    assert store.size_or_none("nothing") is None
    assert store.size_or_none("a/b") is None
    for key in ("nothing", "a/b"):
        with pytest.raises(FileNotFoundError, match=key):
            next(store.blocks(key))


@pytest.mark.slow
def test_exactly_one_creates(store):
    for round_number in range(20 if store.local_folder("") else 3):
        won = contenders(store, f"claims/{round_number}")
        assert len(won) == 1
        assert store.read_or_none(f"claims/{round_number}") == won[0] * 100
        assert not store.create_exclusive(f"claims/{round_number}", won[0] * 100)


def contenders(store, key, count=8):
    """Threads that create one key at the same moment, each by a store of its own; the names of who won."""
    barrier, won = threading.Barrier(count), []

    def create(me):
        own = open_store(store.location)
        barrier.wait()
        if own.create_exclusive(key, me * 100):
            won.append(me)

    threads = [threading.Thread(target=create, args=(bytes([n]),)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def test_a_tree_is_there_when_its_marker_is(store):
    tree = store.new_tree("trees/one")
    with tree.create("a.bin") as file:
        file.write(b"12")
        assert file.write(memoryview(b"34")) == 2
        assert file.write(bytearray(b"5")) == 1
        file.flush()
    with tree.create("empty"):
        pass
    assert store.trees("trees", MARKER) == []
    tree.commit(MARKER, b"done")
    assert store.trees("trees", MARKER) == ["one"]
    assert store.list("trees/one") == ["DONE", "a.bin", "empty"]
    assert contents(store, "trees/one/a.bin") == b"12345"
    assert store.read_or_none("trees/one/DONE") == b"done"
    assert {name: (file.size_bytes, file.sha256) for name, file in tree.files.items()} == {
        "a.bin": (5, hashlib.sha256(b"12345").hexdigest()),
        "empty": (0, hashlib.sha256(b"").hexdigest()),
        MARKER: (4, hashlib.sha256(b"done").hexdigest()),
    }


def test_an_aborted_tree_leaves_nothing(store):
    tree = store.new_tree("trees/one")
    with tree.create("a") as file:
        file.write(b"1")
    with pytest.raises(ZeroDivisionError), tree.create("b") as file:
        file.write(b"2")
        1 / 0  # noqa: B018
    tree.abort()
    assert store.list("trees") == store.trees("trees", MARKER) == []
    assert store.collect_leftovers("trees", MARKER, any_tree) == []


def test_a_name_that_is_taken_is_not_given_again(store):
    make_tree(store, "trees/one", a=b"1")
    second = store.new_tree("trees/one")
    if store.local_folder("") is not None:  # on S3 a file that is uploaded replaces another of its name
        with second.create("a") as file:
            file.write(b"2")
    with pytest.raises(FileExistsError, match="exists already"):
        second.commit(MARKER, b"second")
    second.abort()
    assert contents(store, "trees/one/a") == b"1"
    assert store.read_or_none("trees/one/DONE") == b"done"
    assert store.collect_leftovers("trees", MARKER, any_tree) == []


def test_leftovers_are_collected_and_trees_are_not(store):
    make_tree(store, "trees/one", a=b"1")
    left = store.new_tree("trees/two")
    with left.create("a") as file:
        file.write(b"2")
    (name,) = store.collect_leftovers("trees", MARKER, any_tree)
    assert "two" in name
    assert store.collect_leftovers("trees", MARKER, any_tree) == []
    assert store.trees("trees", MARKER) == ["one"]
    with pytest.raises(FileNotFoundError):  # what was collected meanwhile cannot be committed
        left.commit(MARKER, b"done")
    assert store.trees("trees", MARKER) == ["one"]
    assert store.collect_leftovers("nothing", MARKER, any_tree) == []


def test_probe_leaves_nothing(store):
    probe(store)
    if (folder := store.local_folder("")) is not None:
        assert list(folder.iterdir()) == []
    assert store.list("") == []


# ----------------------------------------------------------------------------- the file system's own


def test_a_folder_that_lost_its_marker_is_still_a_tree(posix_store):
    """A reader then reports it damaged: it was whole once, and is no leftover."""
    make_tree(posix_store, "trees/one", a=b"1")
    posix_store.remove("trees/one/DONE")
    posix_store.write_atomic("trees/file", b"")
    assert posix_store.trees("trees", MARKER) == ["one"]
    assert posix_store.collect_leftovers("trees", MARKER, any_tree) == []


@pytest.mark.parametrize("method", ["stat", "iterdir"])
def test_trees_that_the_file_system_does_not_show_are_an_error(posix_store, monkeypatch, method):
    make_tree(posix_store, "trees/one", a=b"1")

    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, method, fail)
    with pytest.raises(StorageError, match="Input/output error"):
        posix_store.trees("trees", MARKER)
    if method == "iterdir":
        with pytest.raises(StorageError, match="Input/output error"):
            posix_store.collect_leftovers("trees", MARKER, any_tree)


def test_of_a_tree_that_was_moved_and_linked_only_the_link_is_removed(posix_store, tmp_path):
    make_tree(posix_store, "trees/one", a=b"1")
    place = posix_store.local_folder("trees/one")
    place.rename(tmp_path / "archive")
    place.symlink_to(tmp_path / "archive")
    posix_store.remove_tree("trees/one", MARKER)
    assert list(place.parent.iterdir()) == []
    assert (tmp_path / "archive" / "a").read_bytes() == b"1"


def test_what_cannot_be_removed_is_named_by_where_it_is(posix_store, monkeypatch):
    """As of a checkpoint that another user of the group has written with umask 022."""
    make_tree(posix_store, "trees/one", a=b"1")

    def refuse(folder):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a")  # as shutil names it

    monkeypatch.setattr(posix_tree.shutil, "rmtree", refuse)
    with pytest.raises(PermissionError) as caught:
        posix_store.remove_tree("trees/one", MARKER)
    assert (Path(caught.value.filename) / "a").read_bytes() == b"1"


def test_a_link_whose_answer_was_lost_counts_as_created(posix_store, monkeypatch):
    """NFS: the link is made, the answer is lost, and the repeated request finds the name taken."""
    real_link = os.link

    def link_twice(source, target):
        real_link(source, target)
        real_link(source, target)

    monkeypatch.setattr(posix.os, "link", link_twice)
    assert posix_store.create_exclusive("a", b"mine")
    monkeypatch.undo()
    assert not posix_store.create_exclusive("a", b"other")
    assert posix_store.read_or_none("a") == b"mine"


def test_a_rename_whose_answer_was_lost_counts_as_committed(posix_store, monkeypatch):
    real_rename = Path.rename

    def rename_twice(source, target):
        real_rename(source, target)
        real_rename(source, target)

    monkeypatch.setattr(Path, "rename", rename_twice)
    make_tree(posix_store, "trees/one", a=b"1")
    assert posix_store.trees("trees", MARKER) == ["one"]


def test_a_file_system_that_syncs_no_folders_will_do(posix_store, monkeypatch):
    sync = os.fsync

    def files_only(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(fd)

    monkeypatch.setattr(os, "fsync", files_only)
    probe(posix_store)
    make_tree(posix_store, "trees/one", a=b"1")
    assert posix_store.trees("trees", MARKER) == ["one"]


LEASE = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDWR)
signal.signal(signal.SIGIO, lambda *_: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK))
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
signal.pause()
"""


def test_a_file_that_an_nfs_client_has_the_lease_of_is_read(posix_store):
    posix_store.write_atomic("a", b"1")
    with subprocess.Popen(
        [sys.executable, "-c", LEASE, posix_store.uri("a")], stdout=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout.readline() == b"\n"
            assert posix_store.read_or_none("a") == b"1"
        finally:
            server.kill()


def test_a_kill_leaves_the_old_bytes_or_the_new_ones(posix_store):
    def prepare():
        posix_store.write_atomic("a", b"old")

    seen = set()
    for _ in killed_at_every_point(prepare, lambda: posix_store.write_atomic("a", b"new")):
        seen.add(posix_store.read_or_none("a"))
        assert posix_store.list("") == ["a"]
    assert seen == {b"old", b"new"}
    assert posix_store.read_or_none("a") == b"new"


def test_a_kill_leaves_a_whole_new_file_or_none(posix_store):
    seen = set()
    for _ in killed_at_every_point(
        lambda: posix_store.remove("a"), lambda: posix_store.create_exclusive("a", b"new")
    ):
        seen.add(posix_store.read_or_none("a"))
    assert seen == {None, b"new"}


def test_only_stale_handles_are_looked_up_again():
    look = mock.Mock(side_effect=[OSError(errno.ESTALE, "Stale file handle")] * 3 + ["found"])
    assert posix.again_when_stale(look) == "found"
    look = mock.Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        posix.again_when_stale(look)
    assert look.call_count == 1


def test_open_store_takes_paths_and_file_uris(tmp_path):
    assert open_store(str(tmp_path)) == open_store(f"file://{tmp_path}") == PosixStore(tmp_path)
    assert open_store("runs").uri("") == str(Path.cwd() / "runs")
    assert open_store("file:///a%20b").uri("c") == "/a b/c"


@pytest.mark.parametrize("uri", ["s3:///runs", "gs://bucket", "file://other-host/runs"])
def test_open_store_refuses_unknown_schemes(uri):
    with pytest.raises(JobError, match=r"\nGive .*s3://") as refusal:
        open_store(uri)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EPERM, errno.EIO])
def test_what_the_file_system_says_is_shown(posix_store, monkeypatch, number):
    def refuse(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(posix.os, "link", refuse)
    with pytest.raises(StorageError, match=rf"created by uid \d+: {os.strerror(number)}\.\n"):
        posix_store.create_exclusive("a", b"")
    assert list(Path(posix_store.uri("")).iterdir()) == []
