"""Jobs of one node, whose Ray listens only on the loopback address; nodes on which Ray does not start."""

import json
import re
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from slurm.slurm_run import SlurmRun
from support.cluster_jobs import slow
from support.slow_ray import broken_agent
from support.whole_run import FAULTY, same_weights

pytestmark = pytest.mark.timeout(900)
PROBE = Path(__file__).parents[1] / "support" / "network_probe.py"


@pytest.fixture
def make(fresh_cluster, tmp_path):
    cluster = fresh_cluster(nodes=1)

    def make_run(name, workers=1, **sections):
        resources = {"workers": workers, "nodes": 1}
        return SlurmRun(cluster, tmp_path, name, **sections, resources=resources)

    return make_run


def test_a_job_of_one_node_trains_and_its_ray_listens_on_the_loopback_address_alone(make, uninterrupted):
    run = make("one-node", 2, **slow(0.2)).submit()
    run.wait_for_step(2)
    within = [*run.cluster.enter("node1"), sys.executable, str(PROBE), "sockets"]
    listening = json.loads(subprocess.run(within, check=True, capture_output=True).stdout)["tcp"]
    others = [each for each in listening if not ip_address(each[0].removeprefix("::ffff:")).is_loopback]
    assert [each for each in others if not re.match(r"slurmd|srun", each[2])] == []
    of_ranks = [each for each in listening if "RayTrainWorker" in each[2]]
    assert len(of_ranks) == 2 * 2 + 1, "Ray's and gloo's of each, and the store"
    output = run.wait("COMPLETED", 400)
    result = run.result
    assert (result.state, result.world_size, result.step) == ("done", 2, 21), output
    assert run.attempt.rendezvous.read().head_address == "127.0.0.1"
    run.wait_for_nothing_left(60)
    assert same_weights(run.weights(), uninterrupted(2))


def test_the_reason_why_ray_does_not_start_on_a_node_is_in_the_message(make, tmp_path):
    run = make("broken", **FAULTY)
    run.cluster.run_on("node1", ["sh", "-c", broken_agent(tmp_path)])
    output = run.submit().wait("FAILED", 400)
    assert run.cluster.job(run.job_id)["ExitCode"] == "3:0", output
    assert (run.result.state, run.result.cause) == ("failed", "cluster")
    assert "Ray did not start on node1: raylet ended with code" in run.result.text
    assert "ModuleNotFoundError: No module named 'a_package_that_ray_needs'" in run.result.text
    assert "Traceback" not in output
