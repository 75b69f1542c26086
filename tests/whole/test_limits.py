"""Limits that a run meets for real, each named with its number and not met a second time."""

import re

import pytest

from support.cgroups import WITHIN, memory_cgroup
from support.mounts import apart
from support.whole_run import ONE_WORKER

pytestmark = pytest.mark.faults

TRAIN = {"epochs": 2, "batch_size": 4, "log_every": 1}


def test_a_worker_killed_by_its_cgroups_limit_is_named_and_not_restarted(make_run):
    limit_bytes = 3 << 30
    with memory_cgroup(limit_bytes) as cgroup:
        fault = {"fault": "memory", "rank": 0, "at_call": 5}
        run = make_run("memory", task="hungry:Hungry", args=fault, train=TRAIN, **ONE_WORKER)
        run.start(within=[*WITHIN, str(cgroup / "cgroup.procs")])
        output = run.end(1)
    assert (run.result.state, run.result.cause, run.result.restarts) == ("failed", "out_of_memory", 0)
    assert re.search(r"rank 0 \(pid \d+ on \S+\) was killed by the kernel", output)
    assert f"{cgroup} allows 3.0 GiB of memory" in output
    assert re.search(r"oom_kill: 0 → 1", output)
    assert "train.batch_size" in output


# tests/driver/test_diagnosis.py has the message.
@pytest.mark.nightly
def test_too_many_open_files(make_run):
    run = make_run(
        "files",
        task="hungry:Hungry",
        args={"fault": "files", "rank": 0, "at_call": 5},
        train=TRAIN,
        **ONE_WORKER,
    )
    output = run.start(within=["prlimit", "--nofile=2000:2000"]).end(1)
    assert "RLIMIT_NOFILE is 2000, and may be raised to 2000" in output
    assert (run.result.cause, run.result.restarts) == ("limit", 0)


@pytest.mark.nightly  # tests/driver/test_diagnosis.py has what PyTorch prints
def test_a_small_dev_shm_is_named(make_run):
    """In a separate mount namespace, so that no other process gets a small /dev/shm."""
    run = make_run("shm", task="hungry:Bulky", train={**TRAIN, "loader_workers": 1}, **ONE_WORKER)
    output = run.start(within=apart("mount -t tmpfs -o size=24m tmpfs /dev/shm")).end(1)
    assert "/dev/shm is too small" in output
    assert "/dev/shm has 24.0 MiB" in output
    assert "train.loader_workers: 0" in output
    assert (run.result.cause, run.result.restarts) == ("limit", 0)
