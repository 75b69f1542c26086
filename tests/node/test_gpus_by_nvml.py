"""Which GPUs a process has, from a fake of NVML."""

import pytest

import fake_nvml
from clustertrain.node.gpus import GpuProcess, processes_on, visible_gpus
from fake_nvml import FakeGpu

FIRST = FakeGpu("GPU-a", "00000000:1B:00.0")
SECOND = FakeGpu("GPU-b", "00000000:43:00.0", processes={7: 1 << 30, 8: 60 << 30, 9: None})
PART = FakeGpu("MIG-c", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", part_of=SECOND)


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-a", "GPU-b"]),
        ("1,0", ["GPU-b", "GPU-a"]),
        ("GPU-b", ["GPU-b"]),
        ("MIG-c", ["MIG-c"]),
        ("0,7,1", ["GPU-a"]),
        ("", []),
        ("-1", []),
    ],
)
def test_the_gpus_of_a_process_are_those_that_are_visible(monkeypatch, visible, uuids):
    fake_nvml.install(monkeypatch, FIRST, SECOND, PART)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in visible_gpus()] == uuids


def test_a_part_of_a_gpu_has_the_address_of_the_whole_one(monkeypatch):
    fake_nvml.install(monkeypatch, FIRST, SECOND, PART)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c")
    (gpu,) = visible_gpus()
    assert str(gpu) == "MIG-c at PCI address 00000000:43:00.0 (NVIDIA H100 80GB HBM3 MIG 1g.10gb)"


def test_the_processes_of_a_gpu_are_named(monkeypatch):
    fake_nvml.install(monkeypatch, FIRST, SECOND)
    found = processes_on("GPU-b")
    assert found == (GpuProcess(8, 60 << 30), GpuProcess(7, 1 << 30), GpuProcess(9, None))
    assert processes_on("GPU-x") == ()


def test_without_nvml_nothing_is_known(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.install(monkeypatch, FIRST, is_found=False)
    assert visible_gpus() == () and processes_on("GPU-a") == ()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)  # the package is not installed
    assert visible_gpus() == ()
