"""The Ray of a SLURM job as its driver finds it; tests/slurm trains on it."""

import socket

from clustertrain.driver.ray_cluster import Deadline, ray_cluster_of
from clustertrain.job.file import parse_job
from clustertrain.launchers.slurm.ray import SlurmRay


def test_the_agents_environment_names_head_and_nodes_and_a_head_without_a_listener_is_gone(monkeypatch):
    job = parse_job("name: a\nfunction: m:f\nslurm: {nodes_wait: 7s}\n", "job.yaml")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("CLUSTERTRAIN_HEAD", f"127.0.0.1:{port}")
        monkeypatch.setenv("CLUSTERTRAIN_NODES", "n1,n2")
        cluster = ray_cluster_of("slurm", job)
        assert cluster == SlurmRay("127.0.0.1", port, ("n1", "n2"), Deadline(7.0, "slurm.nodes_wait"))
        assert cluster.has_worker_slots and not cluster.outlives_run and not cluster.is_this_machine
        assert not cluster.is_gone()
    assert cluster.is_gone()
