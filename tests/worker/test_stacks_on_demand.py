"""The stacks of a rank, requested by a file."""

import threading

import pytest

from clustertrain.node.waiting import wait_until
from clustertrain.observe.explain.stacks import frames_of
from clustertrain.run_files.folder.run_dir import Restart
from clustertrain.run_files.records.requests import StacksRequest
from clustertrain.worker.stacks import Stacks


@pytest.fixture
def restart(attempt, monkeypatch):
    monkeypatch.setattr(Restart, "look_for_stacks_every_s", lambda restart, world_size: 0.05)
    return attempt.restart(0)


def answer(restart, request, rank):
    store, key = restart.attempt.run.store, f"{restart.stacks_answers_key(request)}/{rank}"
    assert wait_until(lambda: store.read_or_none(key) is not None, 20.0, 0.05)
    return store.read_or_none(key).decode()


def train_loop_per_worker(begun, end):  # the name of the function that Ray calls
    wait_for_the_disk(begun, end)


def wait_for_the_disk(begun, end):
    begun.set()
    end.wait()


def test_a_rank_answers_each_request_once_while_it_trains(restart):
    begun, end = threading.Event(), threading.Event()
    threading.Thread(target=train_loop_per_worker, args=(begun, end), daemon=True).start()
    begun.wait()
    for rank in (0, 1):
        Stacks(restart, rank, 2)
    restart.stacks_request.write(StacksRequest("a"))
    for rank in (0, 1):
        text = answer(restart, "a", rank)
        frames = frames_of(text)
        assert any("in wait_for_the_disk" in frame for frame in frames)
        assert "train_loop_per_worker" not in str(frames)  # below it is only Ray
        assert "wait_for_the_disk" in text
    restart.stacks_request.write(StacksRequest("b"))
    assert answer(restart, "b", 1)
    end.set()


def test_without_a_thread_that_trains_the_frames_are_those_of_the_main_thread(restart):
    end = threading.Event()
    for _ in range(120):  # faulthandler writes 100 threads at most, the newest first
        threading.Thread(target=end.wait, daemon=True).start()
    Stacks(restart, 0, 1)
    restart.stacks_request.write(StacksRequest("a"))
    frames = frames_of(answer(restart, "a", 0))
    end.set()
    assert any("test_stacks_on_demand.py:" in frame and frame.endswith(" in answer") for frame in frames)
