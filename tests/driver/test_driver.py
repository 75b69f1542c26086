"""What the driver checks before it trains; whole runs are in tests/whole."""

import pytest

from clustertrain.driver.__main__ import _check_cluster
from clustertrain.errors import ClusterError
from clustertrain.job.file import parse_job


def job(resources):
    return parse_job(f"name: a\nfunction: m:f\nresources: {resources}\n", "job.yaml")


def test_a_cluster_that_is_too_small_is_an_arithmetic():
    with pytest.raises(ClusterError) as caught:
        _check_cluster(job("{workers: 3}"), 3, {"CPU": 2.0}, "127.0.0.1:6379")
    assert "3 workers × 1 CPU = 3 CPUs, and the Ray cluster at 127.0.0.1:6379 has 2" in str(caught.value)
    with pytest.raises(ClusterError, match="1 GPU = 2 GPUs"):
        _check_cluster(job("{workers: 2, gpus_per_worker: 1}"), 2, {"CPU": 8.0}, "here")
    _check_cluster(job("{workers: 2}"), 2, {"CPU": 2.0}, "here")
