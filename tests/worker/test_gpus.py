"""GPUs that torch cannot use are refused, from torch's answers."""

import pytest
import torch

from clustertrain.errors import ClusterError
from clustertrain.worker.machine.gpus import check_gpus


@pytest.fixture
def refusal(monkeypatch):
    """The error of `check_gpus`, where torch can use `usable` GPUs, and CUDA starts with `error`."""

    def refusal_of(
        *, usable, error="Found no NVIDIA driver on your system.", counted=None, workers=1, each=1
    ):
        def refused():
            raise RuntimeError(f"{error}\nSetting the available devices to be zero.")

        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: counted or usable)
        monkeypatch.setattr(torch.cuda, "init", refused)
        with pytest.raises(ClusterError) as caught:
            check_gpus(workers, each)
        assert len(str(caught.value).splitlines()) <= 3
        return str(caught.value)

    return refusal_of


def test_a_machine_without_gpus(refusal):
    text = refusal(usable=0, workers=2, each=4)
    assert "2 workers × 4 GPUs = 8 GPUs, and torch can use 0 on " in text
    assert f"torch {torch.__version__} is built for CUDA {torch.version.cuda}, and says: Found no NV" in text
    assert "gpus_per_worker to 0" in text


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 12020).",
            "a torch build that this driver",
        ),
        (
            "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "nvidia-fabricm",
        ),
    ],
)
def test_gpus_that_the_driver_lists_and_cuda_cannot_start(refusal, error, remedy):
    """torch counts the GPUs with NVML, so it would say that it can use both."""
    text = refusal(usable=0, error=error, workers=2, counted=2)
    assert "2 workers × 1 GPUs = 2 GPUs, and torch can use 0 on " in text
    assert f"and says: {error}\n" in text and remedy in text


def test_too_few_gpus(refusal):
    text = refusal(usable=2, workers=8)
    assert "8 workers × 1 GPUs = 8 GPUs, and torch can use 2 on " in text
    assert "a node needs at most 2 GPUs" in text


def test_gpus_that_torch_can_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_gpus(1, 1)
