"""The Ray of a SLURM job as its driver finds it; a node on which it does not start costs a start."""

import os
import socket
import sys

import pytest

from clustertrain.driver.ray_cluster import Deadline, ray_cluster_of
from clustertrain.job.model import Job
from clustertrain.launchers.agent.node import result_of_late_node
from clustertrain.launchers.agent.ray import AgentsRay
from clustertrain.launchers.slurm.agent.allocation import settings_of
from clustertrain.node import variables
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.scheduler import SchedulerStart
from support.commands import ran

NODES = ("node1", "node2")
LATE = "Ray on node2 did not start.\nIts log shows why."


def job_of(**sections) -> Job:
    return Job.model_validate({"name": "a", "function": "m:f", **sections})


@pytest.fixture
def start(tmp_path):
    run = RunDir.newest(str(tmp_path), "a")

    def claim(nodes=NODES):
        return claim_attempt(run, launcher="slurm", allocation=SchedulerStart("slurm", "7", {}, "0", nodes))

    return claim


@pytest.mark.parametrize(
    ("nodes", "sections"),
    [
        (("node2",), {}),
        (NODES, {"slurm": {"requeue": False}}),
        (NODES, {"failures": {"retries": 0}}),
    ],
    ids=["one node", "no requeue", "no retries"],
)
def test_a_job_that_gets_no_other_start_has_failed(start, nodes, sections):
    attempt, job = start(nodes), job_of(**sections)
    result = result_of_late_node(attempt, job, LATE, settings_of(job).next_start)
    assert (result.state, result.cause, result.exit_code, result.text) == ("failed", "cluster", 3, LATE)


@pytest.mark.slow
def test_the_driver_of_a_head_that_does_not_start_writes_that_result(start, tmp_path):
    """The driver is a real one; nothing listens at the port of its head."""
    (tmp_path / "m.py").write_text("def f():\n    pass\n")
    job, attempt = job_of(slurm={"nodes_wait": "1s"}, code=str(tmp_path)), start()
    record_job(attempt, job)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {**os.environ, variables.HEAD: f"127.0.0.1:{port}", variables.NODES: ",".join(NODES)}
    environment[variables.ENV] = "{}"
    command = [sys.executable, "-m", "clustertrain.driver", AttemptRef.of(attempt).to_text()]
    done = ran(command, env=environment, timeout=200)
    result = attempt.result.read()
    assert result is not None, done.stderr
    assert (result.state, result.cause) == ("lost", "node_fail"), done.stderr
    assert result.text.startswith("Ray on node1 did not start within 1 s (slurm.nodes_wait).")
    assert done.returncode == result.exit_code == 1


@pytest.mark.parametrize(
    ("launcher", "deadline", "again"),
    [
        ("slurm", Deadline(7.0, "slurm.nodes_wait"), "The job goes back into the queue."),
        ("local", Deadline(7.0, "failures.ray_start"), "The next start of the run may have other hosts."),
    ],
    ids=["slurm", "plug-in"],
)
def test_the_agents_environment_names_head_and_nodes_and_a_head_without_a_listener_is_gone(
    monkeypatch, launcher, deadline, again
):
    section, _, key = deadline.key.partition(".")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("CLUSTERTRAIN_HEAD", f"127.0.0.1:{port}")
        monkeypatch.setenv("CLUSTERTRAIN_NODES", "n1,n2")
        cluster = ray_cluster_of(launcher, job_of(**{section: {key: "7s"}}))
        assert cluster == AgentsRay("127.0.0.1", port, ("n1", "n2"), deadline, again)
        assert cluster.has_worker_slots and not cluster.outlives_run and not cluster.is_this_machine
        assert not cluster.is_gone()
    assert cluster.is_gone()
