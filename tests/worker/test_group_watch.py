"""A rank of a script that makes no process group while others wait: real scripts, and torch's own store."""

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clustertrain.node.ports import Ports, free_port
from clustertrain.waiting import wait_until
from clustertrain.worker.scripts import group_watch
from clustertrain.worker.scripts.group_watch import GroupWatch
from clustertrain.worker.scripts.script_command import Program
from script_runs import ran_script

pytestmark = pytest.mark.slow

JOINS = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
rank, port = int(sys.argv[1]), int(sys.argv[2])
store = TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=100))
time.sleep(1)
"""
LEAVES = ""
LEAVES_LATER = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.1)
"""
SPAWNS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", open("joins.py").read(), *sys.argv[1:]], check=True)
"""


# A closed connection of another test would count for this one, also one of another test process.
LAST_PORT = itertools.count(21999 - os.getpid() % 900, -1)


@pytest.fixture
def port():
    return free_port(Ports(21000, next(LAST_PORT)))


@pytest.fixture
def watched(tmp_path, port):
    """Runs a script as a worker does; returns the events that its watch has written."""
    (tmp_path / "joins.py").write_text(JOINS)

    def run(text, rank, patience_s=150.0):
        notes = []

        def note(kind, text):
            notes.append((kind, text))
            (tmp_path / "go").touch()

        watch = GroupWatch(
            rank=rank,
            world_size=2,
            address="127.0.0.1",
            port=port,
            note=note,
            patience_s=patience_s,
        )
        argv = (sys.executable, "-c", text, str(rank), str(port))
        ran_script(Program("train.py", argv), tmp_path, rank=rank, group=watch)
        return notes

    return run


@pytest.fixture
def peer(port):
    """Starts the other rank, which waits for the first; it is killed at the end."""
    started = []

    def start(rank):
        argv = [sys.executable, "-c", JOINS, str(rank), str(port)]
        started.append(subprocess.Popen(argv, stderr=subprocess.DEVNULL))

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition):
    wait_until(condition, 200, poll_s=0.1)  # another rank imports torch


def test_a_rank_that_ends_while_rank_0_waits_is_named(watched, peer, port):
    peer(0)
    notes = watched(LEAVES, rank=1)
    wait_for(lambda: notes)
    ((kind, text),) = notes
    assert kind == "warning"
    assert text.startswith(
        "rank 1: train.py ended with exit code 0 and made no process group. "
        f"Rank 0 waits for it at 127.0.0.1:{port}, until the timeout of its init_process_group.\n"
    )


def test_rank_0_that_ends_while_another_rank_waits_is_named(watched, peer, port):
    peer(1)
    notes = watched(LEAVES, rank=0)
    wait_for(lambda: notes)
    ((_, text),) = notes
    assert "rank 0: train.py ended with exit code 0 and made no process group. " in text
    assert "A rank on 127.0.0.1 waits for it at" in text


def test_a_rank_that_takes_long_is_named_while_it_runs_and_only_once(watched, peer, port):
    peer(0)
    notes = watched(LEAVES_LATER, rank=1, patience_s=0.1)
    time.sleep(2 * group_watch._POLL_S)
    assert len(notes) == 1
    assert "has made no process group for " in notes[0][1]
    assert "Rank 0 waits for it at" in notes[0][1]


def test_ranks_that_join_are_not_named(watched, port, monkeypatch):
    """Also if a child of the script joins in its place."""
    monkeypatch.setattr(GroupWatch, "_look_for_waiting_ranks", lambda watch: watch._warn("is wrong"))
    found = {}
    other = threading.Thread(target=lambda: found.update({1: watched(SPAWNS, rank=1)}))
    other.start()
    found[0] = watched(JOINS, rank=0)
    other.join()
    time.sleep(2 * group_watch._POLL_S)
    assert found == {0: [], 1: []}


def test_a_script_without_a_process_group_is_not_named(watched):
    notes = watched(LEAVES, rank=1, patience_s=0.2) + watched(LEAVES, rank=0, patience_s=0.2)
    time.sleep(1.5)
    assert notes == []


def test_rank_0_finds_a_rank_that_waits_on_ipv6(port):
    try:
        socket.create_server(("::1", port), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6")
    watch = GroupWatch(rank=0, world_size=2, address="::1", port=port, note=print, patience_s=60)
    with ThreadPoolExecutor() as threads:
        host = threads.submit(watch._caller)
        wait_for(lambda: f":{port:04X} " in Path("/proc/net/tcp6").read_text())
        with socket.create_connection(("::1", port), timeout=20) as waits:
            waits.sendall(b"a client of a store sends first")
            assert host.result(20) == "::1"


def test_a_rank_0_that_has_ended_waits_for_nobody(watched, port, tmp_path, monkeypatch):
    """Its watch listens in its place: other watches find that out, and it still finds a rank that waits."""
    is_awaited = GroupWatch._is_awaited
    answers = []

    def asks(watch):
        answers.append(is_awaited(watch))
        (tmp_path / "go").touch()
        return answers[-1]

    monkeypatch.setattr(GroupWatch, "_is_awaited", asks)
    of_rank_0 = watched(LEAVES, rank=0)
    listens = f":{port:04X} 00000000:0000 0A "
    wait_for(lambda: listens in Path("/proc/net/tcp").read_text())
    notes = watched(LEAVES, rank=1)
    wait_for(lambda: answers)
    notes += watched(LEAVES_LATER, rank=1, patience_s=0.1)
    assert not any(answers)
    assert notes + of_rank_0 == []
    with socket.create_connection(("127.0.0.1", port)) as waits:
        waits.sendall(b"a client of a store sends first")
        wait_for(lambda: of_rank_0)
    assert "A rank on 127.0.0.1 waits for it at" in of_rank_0[0][1]
