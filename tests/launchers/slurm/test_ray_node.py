"""Ray on a node of a SLURM job: its start, its command, its environment without a secret of the job."""

import json
from pathlib import Path

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.file import parse_job
from clustertrain.launchers.agent import node as module
from clustertrain.launchers.agent.node import (
    NodeStart,
    PreparedNode,
    node_environment,
    ports_needed,
    prepare_node,
    ray_command,
)
from clustertrain.launchers.slurm.agent.allocation import read_start_of_job, settings_of
from clustertrain.node.ports import Ports
from clustertrain.run_files.admission import Options
from clustertrain.run_files.records.scheduler import SchedulerStart

JOB = parse_job(
    "name: a\nfunction: m:f\n"
    "resources: {workers: 4, nodes: 2, cpus_per_worker: 1.5, gpus_per_worker: 1, memory_per_worker: 2Gi}\n",
    "job.yaml",
)
STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_CLUSTER_NAME": "site",
    "SLURM_NODEID": "1",
    "CLUSTERTRAIN_NODES": "n1,n2",
    "CLUSTERTRAIN_TOKEN": "s3cret",
    "CLUSTERTRAIN_MAIL": "/tmp/ct-mail-1",
}


def parameters(head):
    ports = Ports(20100, 20100 + ports_needed(JOB) - 1)
    folder, events = Path("/tmp/ct-1"), Path("/runs/events-n1.jsonl")
    record = SchedulerStart("slurm", "7", {}, "0", ("n1", "n2"))
    start = NodeStart(JOB, None, Options(), record, 0, folder, [], settings_of(JOB), "")
    command = ray_command(start, PreparedNode("10.0.0.1", ports, Path("/token"), {}), folder, events, head)
    assert command[-4:-1] == ["300.0", "slurm.nodes_wait", "/runs/events-n1.jsonl"]
    return json.loads(command[-1]), ports


@pytest.mark.parametrize("head", [None, "10.0.0.1:20100"])
def test_every_port_is_of_the_block_and_none_twice(head):
    found, ports = parameters(head)
    single = [value for key, value in found.items() if key.endswith("port") and "worker" not in key]
    workers = range(found["min_worker_port"], found["max_worker_port"] + 1)
    assert len(set(single)) == len(single) == (7 if head is None else 6)
    assert all(ports.first <= port <= ports.last for port in (*single, *workers))
    assert not set(single) & set(workers)
    assert found["max_worker_port"] == ports.last - 2  # two left for the process groups of scripts


def test_the_resources_of_ray_are_those_of_the_job():
    found, _ = parameters(None)
    sizes = (found["num_cpus"], found["num_gpus"], found["memory"], found["resources"])
    assert sizes == (3, 2, 4 * 2**30, {"clustertrain_worker": 2})
    assert found["include_dashboard"] is False


def environment(environ):
    return node_environment(environ, Path("/tmp/ct-1/token"), Ports(1, 2), [Path("/code"), Path("/lib")])


def test_no_secret_and_no_task_of_srun_gets_through():
    secrets = {"CLUSTERTRAIN_TOKEN": "s3cret", "RAY_AUTH_TOKEN": "s3cret", "CLUSTERTRAIN_SUBMISSION": "{}"}
    tasks = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "RAY_ADDRESS": "auto"}
    found = environment({**secrets, **tasks, "SLURM_JOB_ID": "7", "HOME": "/home/u"})
    assert not {*secrets, *tasks} & found.keys()
    assert "s3cret" not in str(found)
    assert (found["SLURM_JOB_ID"], found["RAY_AUTH_MODE"]) == ("7", "token")
    assert found["CLUSTERTRAIN_CODE"] == "/code:/lib"


def start_of(number, job, folder):
    """The start of a task of this SLURM job."""
    record, rank = read_start_of_job({**STEP, "SLURM_JOB_ID": number})
    return NodeStart(job, None, Options(), record, rank, folder, [], settings_of(job), "s3cret")


def test_ray_and_the_fork_server_start_with_the_hash_seed_of_the_job(tmp_path):
    job = parse_job("name: a\ntask: m:T\ntrain: {epochs: 1, batch_size: 1, seed: 5}\n", "job.yaml")
    start = start_of("101", job, tmp_path)
    assert prepare_node(start, "127.0.0.1").environment["PYTHONHASHSEED"] == "5"


def test_jobs_that_start_together_look_for_ports_in_different_places(tmp_path, monkeypatch):
    """The digits of 101 and 110 have the same sum."""
    seeds = []

    def free_block(count, *, seed):
        seeds.append(seed)
        raise ClusterError("")

    monkeypatch.setattr(module, "free_block", free_block)
    job = parse_job("name: a\nfunction: m:f\n", "job.yaml")
    for number in ("101", "110"):
        with pytest.raises(ClusterError):
            prepare_node(start_of(number, job, tmp_path), "127.0.0.1")
    assert seeds[0] != seeds[1]
