"""TF32, cuDNN's algorithms and the layout of weights. The process settings are restored after each test."""

import pytest
import torch

from clustertrain.training.settings import TrainSettings
from clustertrain.training.step.kernels import kernels_in_use, use_fast_kernels
from training.ranks import ALONE
from training.tasks import Plain, run_task

GPU = torch.device("cuda", 0)


def kernels():
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
    )


@pytest.fixture(autouse=True)
def restored():
    matmul, tf32, benchmark, deterministic = kernels()
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, benchmark
    torch.backends.cudnn.deterministic = deterministic
    torch.use_deterministic_algorithms(False)


def test_a_cpu_computes_as_before():
    before = kernels()
    use_fast_kernels("tf32", "deterministic", torch.device("cpu"))
    assert kernels_in_use(torch.device("cpu")) == ""
    assert kernels() == before


@pytest.mark.parametrize(
    ("matmul", "cudnn", "expected", "text"),
    [
        ("tf32", "measured", ("high", True, True, False), "products in TF32 (10 bits of mantissa), conv"),
        ("highest", "measured", ("highest", False, True, False), "products in fp32, convolutions in fp32"),
        ("tf32", "default", ("high", True, False, False), "algorithms: cuDNN's own choice (train.cudnn)"),
        ("tf32", "deterministic", ("high", True, False, True), "algorithms: deterministic (train.cudnn)"),
    ],
)
def test_a_gpu_uses_what_the_keys_name_and_the_log_has_it(matmul, cudnn, expected, text):
    use_fast_kernels(matmul, cudnn, GPU)
    assert kernels() == expected
    assert text in kernels_in_use(GPU)


def test_deterministic_algorithms_are_not_measured():
    use_fast_kernels("tf32", "measured", GPU)
    torch.use_deterministic_algorithms(True)
    assert "deterministic" in kernels_in_use(GPU)
    assert not torch.backends.cudnn.benchmark


class Precise(Plain):
    def __init__(self):
        super().__init__()
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.benchmark = False


def test_kernels_that_a_task_sets_itself_stay():
    use_fast_kernels("tf32", "measured", GPU)
    run_task(ALONE, Precise(), TrainSettings(steps=1, batch_size=2))
    assert kernels_in_use(GPU).startswith("fp32 numbers: matrix products in fp32, convolutions in TF32")
    assert kernels()[2] is False
