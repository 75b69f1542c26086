"""The share of a node that is ours, from SLURM's variables and from what the kernel holds us to."""

import os
from functools import partial
from types import SimpleNamespace

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.file import parse_job
from clustertrain.launchers.slurm.agent import allocation
from clustertrain.launchers.slurm.agent.allocation import (
    _cpus,
    _gpus,
    _memory_bytes,
    check_resources,
    read_start_of_job,
)
from clustertrain.run.records import SchedulerStart

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_CLUSTER_NAME": "site",
    "SLURM_NODEID": "1",
    "CLUSTERTRAIN_NODES": "n1,n2",
    "CLUSTERTRAIN_TOKEN": "s3cret",
    "CLUSTERTRAIN_MAIL": "/tmp/ct-mail-1",
    "SLURM_CPUS_ON_NODE": "1",
}


@pytest.fixture(autouse=True)
def no_cgroup(monkeypatch):
    """What holds this very machine is not of interest here."""
    monkeypatch.setattr(allocation, "read_limits", partial(SimpleNamespace, cgroups=()))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def check(resources, **variables):
    check_resources(job(resources), "n2", environ={**STEP, **variables})


def job(resources):
    return parse_job(f"name: a\nfunction: m:f\nresources: {resources}\n", "job.yaml")


def test_who_it_is():
    assert read_start_of_job(STEP) == (SchedulerStart("slurm", "site", "12", 0, ("n1", "n2")), 1)
    assert read_start_of_job({**STEP, "SLURM_RESTART_COUNT": "3"})[0].restart == 3


@pytest.mark.parametrize(
    "missing", ["SLURM_JOB_ID", "SLURM_NODEID", "CLUSTERTRAIN_TOKEN", "CLUSTERTRAIN_MAIL"]
)
def test_elsewhere_it_is_refused(missing):
    with pytest.raises(ClusterError, match=f"{missing} is not set: this process is not a task"):
        read_start_of_job({key: value for key, value in STEP.items() if key != missing})


@pytest.mark.parametrize(
    ("variables", "cpus"),
    [
        ({}, 1),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_CPUS_PER_TASK": "6"}, 6),
        ({"SLURM_CPUS_ON_NODE": "64"}, 8),  # the affinity is the lower limit
    ],
)
def test_cpus(variables, cpus):
    assert _cpus({**STEP, **variables}) == cpus


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({}, 0),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "2,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f1a,MIG-0c"}, 2),
    ],
    ids=str,
)
def test_gpus(variables, gpus):
    assert _gpus({**STEP, **variables}) == gpus


@pytest.mark.parametrize(
    ("variables", "mib"),
    [
        ({}, None),
        ({"SLURM_MEM_PER_NODE": "800"}, 800),
        ({"SLURM_MEM_PER_NODE": "0"}, None),  # SLURM's word for all of the node
        ({"SLURM_MEM_PER_CPU": "500", "SLURM_CPUS_ON_NODE": "4"}, 2000),
        # As SLURM 22.05 spreads --mem-per-cpu=3072M of a job over more CPUs with MaxMemPerCPU=1000.
        (
            {
                "SLURM_MEM_PER_CPU": "768",
                "SLURM_CPUS_ON_NODE": "1",
                "SLURM_JOB_CPUS_PER_NODE": "2,4(x3)",
                "SLURM_NODEID": "3",
            },
            3072,
        ),
    ],
    ids=str,
)
def test_memory(variables, mib):
    assert _memory_bytes({**STEP, **variables}) == (None if mib is None else mib * 2**20)


def test_a_share_with_too_little_memory_is_an_arithmetic():
    node = {"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "800"}
    said = "2 workers per node × 512 MiB of memory = 1024, and SLURM's allocation on n2 is 800."
    with pytest.raises(ClusterError, match=said):
        check("{workers: 4, nodes: 2, memory_per_worker: 512Mi}", **node)
    check("{workers: 4, nodes: 2, memory_per_worker: 400Mi}", **node)


def test_fractions_of_cpus_are_added_without_the_error_of_floats(monkeypatch):
    """As floats, 25 workers × 0.28 CPUs are 7.000000000000001."""
    check("{workers: 25, cpus_per_worker: 0.28}", SLURM_CPUS_PER_TASK="7")
    with pytest.raises(ClusterError, match="= 7, and SLURM's allocation on n2 is 6"):
        check("{workers: 25, cpus_per_worker: 0.28}", SLURM_CPUS_PER_TASK="6")


def test_the_least_limit_of_a_cgroup_counts(monkeypatch):
    cgroups = [SimpleNamespace(limit_bytes=size) for size in (None, 300 * 2**20, 900 * 2**20)]
    monkeypatch.setattr(allocation, "read_limits", partial(SimpleNamespace, cgroups=cgroups))
    assert _memory_bytes({**STEP, "SLURM_MEM_PER_NODE": "800"}) == 300 * 2**20
