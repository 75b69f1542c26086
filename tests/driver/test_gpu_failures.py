"""From the GPUs of a group's workers to the event of its start, and to the failure of one of them."""

import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from clustertrain.driver.cause.rank_failure import RankFailures
from clustertrain.driver.cause.ranks import Ranks
from support import fake_nvml
from support.fake_nvml import FakeGpu
from support.sample_records import sample_restart_claim


def done(function):
    call = Future()
    call.set_result(function())
    return call


class Workers:
    """Ray Train's worker group without processes; a function runs in this one."""

    def get_workers(self):
        return [
            SimpleNamespace(
                distributed_context=SimpleNamespace(world_rank=rank),
                metadata=SimpleNamespace(hostname="node7", pid=10 + rank, node_id="ab12"),
                execute_async=done,
            )
            for rank in (0, 1)
        ]


class RanksHere(Ranks):
    def call_on_node(self, rank, function, *args):
        return function(*args)


def started(worker_group, attempt):
    ranks = RanksHere(worker_group, attempt.restart(0))
    ranks.note_limits(answer_s=5.0)
    return ranks


@pytest.fixture
def ranks(attempt, monkeypatch):
    gpu = FakeGpu("GPU-a", processes={99: 40 << 30, 11: 34 << 30})
    fake_nvml.install(monkeypatch, gpu)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    attempt.restart(0).claim.create(sample_restart_claim())
    return started(Workers(), attempt)


def test_the_event_of_a_start_has_the_gpus(ranks):
    event = ranks.as_event()
    assert event["world_size"] == 2
    assert abs(event["ranks"][1].pop("clock_ahead_s")) < 1
    assert event["ranks"][1] == {
        "rank": 1,
        "host": "node7",
        "pid": 11,
        "gpus": [{"uuid": "GPU-a", "pci": "00000000:1B:00.0", "name": "NVIDIA H100 80GB HBM3"}],
    }


def test_the_event_of_a_start_has_the_clock_of_each_rank(ranks, attempt):
    """That of rank 1's node is five minutes ahead."""

    def later():
        return time.time() + 300

    workers = Workers().get_workers()
    workers[1].execute_async = lambda function: done(later if function is time.time else function)
    worker_group = SimpleNamespace(get_workers=lambda: workers)
    event = started(worker_group, attempt).as_event()
    found = [event["clock_ahead_s"], *(rank["clock_ahead_s"] for rank in event["ranks"])]
    assert found == pytest.approx([0, 0, 300], abs=2)


FULL = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which "
    "4.00 GiB is free."
)


def test_memory_of_another_process_is_retried_and_a_broken_gpu_once(ranks):
    taken = RuntimeError(
        f"{FULL} Process 99 has 40.00 GiB memory in use. Including non-PyTorch memory, this "
        "process has 34.00 GiB memory in use. Of the allocated memory 32.11 GiB is allocated by PyTorch."
    )
    failure = RankFailures(ranks).of_exception(1, taken)
    assert (failure.cause, failure.fatal, failure.transient) == ("out_of_memory", False, True)
    assert failure.retry_after_s == 30.0 and failure.broken_node == ""
    of_processes = failure.text.partition(":")[2]
    assert "process 99 with 40.0 GiB" in of_processes and "11 with" not in of_processes
    broken = RankFailures(ranks).of_exception(
        1, RuntimeError("CUDA error: uncorrectable ECC error encountered")
    )
    assert (broken.cause, broken.fatal, broken.transient, broken.retry_after_s) == ("gpu", False, False, 0.0)
    assert broken.broken_node == "ab12"
    assert "GPU-a at PCI address 00000000:1B:00.0" in broken.text
