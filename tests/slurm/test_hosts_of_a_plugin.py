"""A plug-in whose jobs have several hosts: SLURM's nodes, which it uses as a scheduler that clustertrain does
not know."""

import os
import re
import signal
from pathlib import Path

import pytest

from clusters.slurm import SlurmCluster
from slurm.slurm_run import SlurmRun, wait_for_no_process
from support.cluster_jobs import slow
from support.whole_run import same_weights

pytestmark = pytest.mark.timeout(600)

PLUGIN = """
import os

from clustertrain.launcher import Plugin, Scheduler, Sent, State, run

PHASES = {"PENDING": "waits", "RUNNING": "runs", "COMPLETING": "ends"}
LINES = '''#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --time=10 --nodelist=node1,node2 --output=hosts-%j.out
#SBATCH --no-kill --no-requeue
'''


class Nodes(Scheduler):
    label = "two nodes"
    max_hosts = 2

    def script(self, job, needs):
        return LINES + needs.program(
            '"$SLURM_JOB_ID"',
            start='"${SLURM_RESTART_COUNT:-0}"',
            hosts='"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)"',
            on="srun --overlap --nodes=1 --ntasks=1 --nodelist={host} --export=ALL",
        )

    def submit(self, job, script, environment):
        done = run(["sbatch", "--parsable"], input=script.encode(), environ={**os.environ, **environment})
        return Sent(done.stdout.strip())

    def query(self, jobs):
        lines = run(["squeue", "--noheader", "--format=%A %T"]).stdout.splitlines()
        found = dict(line.split() for line in lines)
        asked = {job.job_id for job in jobs}
        return {id: State(word, PHASES.get(word, "ended")) for id, word in found.items() if id in asked}

    def cancel(self, job):
        run(["scancel", job.job_id])


SCHEDULER = Nodes()
PLUGIN = Plugin("two_nodes:SCHEDULER")
"""


class OnTwoNodes(SlurmRun):
    """A run that the plug-in submits."""

    launcher = "two_nodes"

    def __init__(self, cluster: SlurmCluster, folder: Path, **sections) -> None:
        super().__init__(cluster, folder, "hosts", **sections)
        info = folder / "site" / "two_nodes-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / "site" / "two_nodes.py").write_text(PLUGIN)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: two-nodes\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[clustertrain.launchers]\ntwo_nodes = two_nodes:PLUGIN\n")

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PYTHONPATH": str(self.folder / "site")}


@pytest.fixture
def run(cluster, tmp_path):
    return OnTwoNodes(cluster, tmp_path, **slow(0.5))


def test_a_signal_saves_on_both_hosts_and_the_next_job_computes_what_one_machine_does_and_leaves_nothing(
    run, cluster, uninterrupted
):
    run.submit().wait_for_step(3)
    token = cluster.run_on("node1", ["cat", run.attempt.rendezvous.read().token_path]).stdout
    arguments = [argv for node in cluster.nodes for _, argv in cluster.processes_on(node)]
    assert len(token) == 64 and not any(token in " ".join(argv) for argv in arguments)
    cluster.command("scancel", "--batch", "--signal=TERM", run.job_id)
    run.wait("FAILED")
    assert (run.result.state, run.result.cause) == ("stopped", "terminated")
    output = run.submit().wait("COMPLETED")
    result = run.result
    assert (result.state, result.step, result.world_size) == ("done", 21, 2), output
    assert [attempt.result.read().state for attempt in run.run_dir.attempts()] == ["stopped", "done"]
    (started,) = [event for event in run.events if event["kind"] == "group_started"]
    assert sorted(rank["host"] for rank in started["ranks"]) == ["node1", "node2"]
    assert same_weights(run.weights(), uninterrupted(2))
    assert run.left_on_nodes() == {}


def kill(run: OnTwoNodes, node: str, program: str) -> None:
    """SIGKILL to the process on the node that runs this program of the launcher."""
    name = rf"python\S* (-P )?-m clustertrain\.launchers\.scheduler\.{program}( |$)"
    (pid,) = [p for p, argv in run.cluster.processes_on(node) if re.match(rf"\S*{name}", " ".join(argv))]
    os.kill(pid, signal.SIGKILL)


def test_a_host_whose_agent_is_killed_is_lost(run, cluster):
    run.submit().wait_for_step(3)
    kill(run, "node2", "agent")
    output = run.wait("FAILED")
    assert (run.result.state, run.result.cause, run.result.exit_code) == ("lost", "node_fail", 1), output
    wait_for_no_process(cluster, cluster.nodes, within_s=15)


@pytest.mark.faults
@pytest.mark.nightly  # in CI: a host whose agent is killed, above
def test_a_host_that_crashes_is_lost(run, cluster):
    """The job goes on without it (--no-kill): the end of srun, or of Ray, says that it is lost."""
    run.submit().wait_for_step(3)
    cluster.crash("node2")
    output = run.wait("FAILED", 240)
    assert (run.result.state, run.result.cause, run.result.exit_code) == ("lost", "node_fail", 1), output
    wait_for_no_process(cluster, ["node1"], within_s=15)


@pytest.mark.faults
@pytest.mark.nightly  # in CI: test_bad_nodes.py kills the head of a job of SLURM
def test_a_killed_head_leaves_no_process_anywhere(run, cluster):
    run.submit().wait_for_step(3)
    kill(run, "node1", "start")
    wait_for_no_process(cluster, cluster.nodes, within_s=30)
    assert run.attempt.result.read() is None


def test_an_agent_that_does_not_start_is_named_with_its_words(run, cluster):
    (run.folder / "site" / "two_nodes.py").write_text(PLUGIN.replace("=ALL", "=ALL --no-such"))
    run.submit()
    output = run.wait("FAILED")
    assert (run.result.state, run.result.cause) == ("lost", "node_fail"), output
    assert "The agent on node2 ended with code" in run.result.text
    assert "unrecognized option '--no-such'" in run.result.text
