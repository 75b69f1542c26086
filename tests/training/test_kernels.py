"""TF32, cuDNN's algorithms and the layout of weights. The process settings are restored after each test."""

import pytest
import torch
from torch import nn

from clustertrain.training.kernels import to_channels_last, use_fast_kernels
from clustertrain.training.settings import TrainSettings
from training.tasks import Classify

GPU = torch.device("cuda", 0)


def kernels():
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )


@pytest.fixture(autouse=True)
def restored():
    matmul, tf32, benchmark = kernels()
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, benchmark
    torch.use_deterministic_algorithms(False)


def test_a_cpu_computes_as_before():
    before = kernels()
    assert use_fast_kernels("tf32", torch.device("cpu")) == ""
    assert kernels() == before


@pytest.mark.parametrize(
    ("matmul", "expected"), [("tf32", ("high", True, True)), ("highest", ("highest", False, True))]
)
def test_a_gpu_uses_what_the_key_names_and_the_log_has_it(matmul, expected):
    text = use_fast_kernels(matmul, GPU)
    assert kernels() == expected
    assert f"(train.matmul: {matmul})" in text
    assert "measured for each shape" in text


def test_deterministic_algorithms_are_not_measured():
    torch.use_deterministic_algorithms(True)
    assert "deterministic" in use_fast_kernels("tf32", GPU)
    assert not torch.backends.cudnn.benchmark


def test_convolutions_have_their_channels_last_with_the_same_values():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    volumes = nn.Conv3d(3, 4, 3)
    x = torch.rand(2, 3, 3, 3)
    before, weights = model(x), [p.clone() for p in model.parameters()]
    for each in (model, volumes):
        to_channels_last(each)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert volumes.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert model[0](x).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x), before)


def test_the_default_optimizer_is_fused_on_a_gpu_only():
    task = Classify()
    assert not task.optimizer(nn.Linear(2, 1)).defaults["fused"]
    assert TrainSettings(steps=1, batch_size=1).matmul == "tf32"
