"""A machine whose GPUs torch cannot use."""

import pytest

from clustertrain.errors import ClusterError
from clustertrain.worker.gpus import check_gpus


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
