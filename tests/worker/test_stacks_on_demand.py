"""The stacks of a rank, requested by a file; and those of a script, as far as py-spy and the kernel tell."""

import shutil
import subprocess
import sys
import threading

import pytest

from clustertrain.record_file import RecordFile
from clustertrain.run.records import StacksRequest
from clustertrain.waiting import wait_until
from clustertrain.worker import stacks_on_demand
from clustertrain.worker.scripts.py_spy import python_frames
from clustertrain.worker.stacks_on_demand import StacksOnDemand

PY_SPY = """\
Process 4711: python train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    wait (threading.py:320)
    read (train.py:12)
    <module> (train.py:30)

Thread 4720 (active): "loader"
    load (loader.py:3)
"""


@pytest.fixture
def restart(attempt, monkeypatch):
    monkeypatch.setattr(StacksRequest, "look_every_s", lambda world_size: 0.05)
    monkeypatch.setattr(stacks_on_demand, "_POLL_S_ON_S3", 0.1)
    return attempt.restart(0)


def answer(restart, request, rank):
    read = restart.stacks_answer(request, rank).read
    assert wait_until(lambda: read() is not None, 20.0, 0.05)
    return read()


def train_loop_per_worker(begun, end):  # the name of the function that Ray calls
    wait_for_the_disk(begun, end)


def wait_for_the_disk(begun, end):
    begun.set()
    end.wait()


def test_a_rank_answers_each_request_once_while_it_trains(restart):
    begun, end = threading.Event(), threading.Event()
    threading.Thread(target=train_loop_per_worker, args=(begun, end), daemon=True).start()
    begun.wait()
    for rank in (0, 1):  # of one node: on S3 the first of them asks for both
        StacksOnDemand(restart, rank, 2, asks_storage=rank == 0, of_script=False)
    # from another machine: not into the spool of this node
    RecordFile(restart.attempt.run.store, restart.stacks_request.key, StacksRequest).write(StacksRequest("a"))
    for rank in (0, 1):
        found = answer(restart, "a", rank)
        assert any("in wait_for_the_disk" in frame for frame in found.frames)
        assert "train_loop_per_worker" not in str(found.frames)  # below it is only Ray
        assert "wait_for_the_disk" in found.text
    restart.stacks_request.write(StacksRequest("b"))
    assert answer(restart, "b", 1).rank == 1
    end.set()


def test_a_script_is_a_process_of_its_own(restart, monkeypatch):
    code = "import time\ndef wait_for_the_disk(): time.sleep(60)\nprint(flush=True)\nwait_for_the_disk()"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        monkeypatch.setattr(stacks_on_demand, "running", [child.pid])
        StacksOnDemand(restart, 0, 1, asks_storage=True, of_script=True)
        restart.stacks_request.write(StacksRequest("a"))
        found = answer(restart, "a", 0)
        child.kill()
    assert found.pid == child.pid
    if shutil.which("py-spy"):
        assert "wait_for_the_disk" in found.frames[0]
    else:
        assert found.frames[0].startswith("the script is in state S (sleeping)")
        assert "py-spy is not installed" in found.frames[1]


def test_the_frames_of_a_script_are_those_of_its_main_thread():
    assert python_frames(PY_SPY, 4711) == (
        "threading.py:320 in wait",
        "train.py:12 in read",
        "train.py:30 in <module>",
    )
    assert python_frames("Error: Permission Denied: Try running again with elevated permissions\n", 7) == ()
