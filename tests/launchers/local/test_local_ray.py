"""The Ray cluster of `clustertrain run`; whole runs are in tests/whole."""

import pytest

from clustertrain.driver.ray_cluster import ray_cluster_of
from clustertrain.errors import ClusterError
from clustertrain.job.file import parse_job
from clustertrain.launchers.local.ray import GivenRay, LocalRay


def job(resources="{workers: 1}"):
    return parse_job(f"name: a\nfunction: m:f\nresources: {resources}\n", "job.yaml")


@pytest.mark.parametrize(
    ("address", "is_given"), [("127.0.0.1:6379", True), ("", False), (None, False)], ids=repr
)
def test_ray_address_alone_decides_between_a_given_ray_and_one_on_this_machine(
    monkeypatch, tmp_path, address, is_given
):
    monkeypatch.setenv("CLUSTERTRAIN_RAY_DIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    cluster = ray_cluster_of("local", job())
    assert cluster.outlives_run == is_given
    assert cluster.is_this_machine != is_given
    resources = job().resources
    assert cluster == (
        GivenRay(address, resources, 300.0, 0.0) if is_given else LocalRay(str(tmp_path), resources, 300.0)
    )
    assert str(cluster.deadline) == "300 s (failures.ray_start)"


def test_a_cluster_that_is_too_small_is_an_arithmetic():
    with pytest.raises(ClusterError) as caught:
        GivenRay("127.0.0.1:6379", job("{workers: 3}").resources, 300.0, 0.0).check_resources(3, {"CPU": 2.0})
    assert "3 workers × 1 CPU = 3 CPUs, and the Ray cluster at 127.0.0.1:6379 has 2" in str(caught.value)
    with_gpus = job("{workers: 2, gpus_per_worker: 1}").resources
    with pytest.raises(ClusterError, match="1 GPU = 2 GPUs"):
        GivenRay("here", with_gpus, 300.0, 0.0).check_resources(2, {"CPU": 8.0})
    GivenRay("here", job("{workers: 2}").resources, 300.0, 0.0).check_resources(2, {"CPU": 2.0})
