"""Limits that a run meets for real, each named with its number and not met a second time."""

import re

import pytest

from cgroups import WITHIN, memory_cgroup
from whole_run import ONE_WORKER

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
