"""GPUs that torch cannot use are refused; fakes of NVML and of torch's answers."""

import pytest
import torch

import fake_nvml
from clustertrain.errors import ClusterError
from clustertrain.worker.machine.gpus import RankGpus, check_gpus, gpus_of_rank
from fake_nvml import FakeGpu

H100 = FakeGpu("GPU-a")


@pytest.fixture
def refusal(monkeypatch):
    """The error of `check_gpus`, where torch can use `usable` GPUs of the driver's."""

    def refusal_of(
        *gpus, usable, counted=None, workers=1, each=1, cuda="13.0", built_for=("sm_80", "sm_90"), **driver
    ):
        fake_nvml.install(monkeypatch, *gpus, **driver)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: counted or usable)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(built_for))
        monkeypatch.setattr(torch.version, "cuda", cuda)
        with pytest.raises(ClusterError) as caught:
            check_gpus(workers, each)
        assert len(str(caught.value).splitlines()) == 3 or "compute capability" in str(caught.value)
        return str(caught.value)

    return refusal_of


def test_a_machine_without_gpus(refusal):
    text = refusal(usable=0, workers=2, each=4, is_found=False)
    assert "2 workers × 4 GPUs = 8 GPUs, and torch can use 0 on " in text
    assert torch.__version__ in text
    assert "gpus_per_worker to 0" in text


@pytest.mark.parametrize(
    ("cuda", "driver", "rule"),
    [
        ("13.0", "570.124.06", "needs driver 580 or newer, and this node has 570.124.06"),
        ("12.8", "520.61.05", "needs driver 525 or newer, and this node has 520.61.05"),
    ],
)
def test_a_driver_that_is_too_old(refusal, cuda, driver, rule):
    text = refusal(H100, usable=0, cuda=cuda, driver=driver)
    assert f"is built for CUDA {cuda}, which {rule}.\nInstall a newer driver" in text


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "nvidia-fabricm",
        ),
        (
            "CUDA unknown error - this may be due to an incorrectly set up environment",
            "administrators of the",
        ),
    ],
)
def test_gpus_that_the_driver_lists_and_cuda_cannot_start(refusal, monkeypatch, error, remedy):
    """torch counts the GPUs with NVML, so it would say that it can use both."""

    def refused():
        raise RuntimeError(f"{error}\nSetting the available devices to be zero.")

    monkeypatch.setattr(torch.cuda, "init", refused)
    text = refusal(H100, FakeGpu("GPU-b"), usable=0, workers=2, counted=2)
    assert "2 workers × 1 GPUs = 2 GPUs, and torch can use 0 on " in text
    assert f"The driver lists 2, and CUDA does not start: {error}\n" in text and remedy in text


def test_too_few_gpus(refusal):
    text = refusal(H100, FakeGpu("GPU-b"), usable=2, workers=8)
    assert "8 workers × 1 GPUs = 8 GPUs, and torch can use 2 on " in text
    assert "gives this process 2: NVIDIA H100 80GB HBM3, NVIDIA H100 80GB HBM3." in text
    assert "a node needs at most 2 GPUs" in text


@pytest.mark.parametrize(
    ("capability", "built_for"),
    [((7, 0), ["sm_75", "sm_80"]), ((12, 0), ["sm_90", "sm_100"]), ((10, 3), ["sm_90a", "sm_100a"])],
)
def test_a_gpu_for_which_torch_has_no_code(refusal, capability, built_for):
    text = refusal(FakeGpu("GPU-a", capability=capability), usable=1, built_for=built_for)
    major, minor = capability
    assert f"has compute capability {major}.{minor} (sm_{major}{minor}), and this torch has code for" in text
    assert ", ".join(built_for) in text and "Install a torch build for this GPU" in text


@pytest.mark.parametrize(
    ("capability", "built_for"),
    [
        ((8, 9), ["sm_80"]),
        ((9, 0), ["sm_90a"]),
        ((12, 0), ["sm_80", "compute_90"]),
        ((10, 3), ["sm_100f"]),
        ((9, 0), []),
    ],
)
def test_gpus_that_torch_can_use(monkeypatch, capability, built_for):
    fake_nvml.install(monkeypatch, FakeGpu("GPU-a", capability=capability))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built_for)
    check_gpus(1, 1)


def test_the_gpus_of_a_rank(monkeypatch):
    fake_nvml.install(monkeypatch, H100)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = gpus_of_rank()
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-a"] and found.cuda == torch.version.cuda
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_of_rank() == RankGpus()
