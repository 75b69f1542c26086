"""What the driver checks before it trains; whole runs are in tests/whole."""

import pytest

from clustertrain.driver.__main__ import _check_cluster
from clustertrain.errors import ClusterError
from clustertrain.job.file import parse_job
from clustertrain.node.gpus import check_gpus


def job(resources):
    return parse_job(f"name: a\nfunction: m:f\nresources: {resources}\n", "job.yaml")


def test_a_cluster_that_is_too_small_is_an_arithmetic():
    with pytest.raises(ClusterError) as caught:
        _check_cluster(job("{workers: 3}"), 3, {"CPU": 2.0}, "127.0.0.1:6379")
    assert "3 workers × 1 CPU = 3 CPUs, and the Ray cluster at 127.0.0.1:6379 has 2" in str(caught.value)
    with pytest.raises(ClusterError, match="1 GPU = 2 GPUs"):
        _check_cluster(job("{workers: 2, gpus_per_worker: 1}"), 2, {"CPU": 8.0}, "here")
    _check_cluster(job("{workers: 2}"), 2, {"CPU": 2.0}, "here")


def test_gpus_that_torch_cannot_use_are_refused(monkeypatch):
    """A stand-in for the driver's answer: the refusal is the same on a machine with and without GPUs."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ClusterError) as caught:
        check_gpus(2, 4)
    text = str(caught.value)
    assert "2 workers × 4 GPUs = 8 GPUs, and torch can use 0 on " in text
    assert torch.__version__ in text
    assert "gpus_per_worker to 0" in text
    assert len(text.splitlines()) == 3
