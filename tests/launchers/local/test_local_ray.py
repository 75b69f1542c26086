"""The Ray cluster of `clustertrain run`; whole runs are in tests/whole."""

import pytest

from clustertrain.driver.ray_cluster import Deadline, ray_cluster_of
from clustertrain.errors import ClusterError
from clustertrain.job.file import parse_job
from clustertrain.launchers.local.ray import GivenRay

NOW = Deadline(0.0, "")


def job(resources="{workers: 1}"):
    return parse_job(f"name: a\nfunction: m:f\nresources: {resources}\n", "job.yaml")


def test_missing_nodes_of_a_given_ray_are_waited_for_beyond_its_start(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    elastic = job("{workers: [1, 2]}\nfailures: {ray_start: 10s, resize_after: 5s}")
    deadline = ray_cluster_of("local", elastic).deadline
    assert str(deadline) == "15 s (failures.ray_start + failures.resize_after)"


def test_a_cluster_that_is_too_small_is_an_arithmetic():
    with pytest.raises(ClusterError) as caught:
        GivenRay("127.0.0.1:6379", job("{workers: 3}").resources, NOW, 0.0).check_resources(3, {"CPU": 2.0})
    assert "3 workers × 1 CPU = 3 CPUs, and the Ray cluster at 127.0.0.1:6379 has 2" in str(caught.value)
    with_gpus = job("{workers: 2, gpus_per_worker: 1}").resources
    with pytest.raises(ClusterError, match="1 GPU = 2 GPUs"):
        GivenRay("here", with_gpus, NOW, 0.0).check_resources(2, {"CPU": 8.0})
    GivenRay("here", job("{workers: 2}").resources, NOW, 0.0).check_resources(2, {"CPU": 2.0})
