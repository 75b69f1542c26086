"""Which GPUs a process has, from a fake of NVML, and the CPUs near them, from files."""

from pathlib import Path

import pytest

from clustertrain.node.gpus import GpuProcess, processes_on, visible_gpus
from clustertrain.node.numa import bind_process, numa_node_of
from support import fake_nvml
from support.fake_nvml import FakeGpu

GPUS = ["0000:1b:00.0", "0000:9c:00.0"]


@pytest.fixture
def machine(tmp_path):
    """Its root folder. The GPUs are on nodes 0 and 1; CPUs 0-3,8-11 and 4-7,12-15."""
    for number, address in enumerate(GPUS):
        device = tmp_path / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{number}\n")
        node = tmp_path / f"sys/devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(("0-3,8-11\n", "4-7,12-15\n")[number])
    return tmp_path


def test_the_cpus_of_a_gpu_are_those_of_its_node_that_the_process_may_use(machine):
    found = numa_node_of(["00000000:9C:00.0"], range(16), machine)
    assert (found.number, found.cpus) == (1, {4, 5, 6, 7, 12, 13, 14, 15})
    assert numa_node_of(["0000:1b:00.0"], [2, 3, 4, 5], machine).cpus == {2, 3}


def test_gpus_of_several_nodes_or_of_an_unknown_one(machine):
    assert numa_node_of(GPUS, range(16), machine) is None
    assert numa_node_of([], range(16), machine) is None
    assert numa_node_of(["0000:ff:00.0"], range(16), machine) is None
    (machine / "sys/bus/pci/devices/0000:1b:00.0/numa_node").write_text("-1\n")
    assert numa_node_of(["0000:1b:00.0"], range(16), machine) is None


def test_a_machine_with_one_node_needs_no_binding(machine):
    (machine / "sys/devices/system/node/node1/cpulist").unlink()
    (machine / "sys/devices/system/node/node1").rmdir()
    assert numa_node_of(["0000:1b:00.0"], range(16), machine) is None


def test_every_thread_is_bound(monkeypatch):
    bound = []
    monkeypatch.setattr(Path, "iterdir", lambda folder: [folder / "7", folder / "8", folder / "9"])

    def set_affinity(thread, cpus):
        if thread == 8:
            raise ProcessLookupError
        bound.append((thread, cpus))

    monkeypatch.setattr("os.sched_setaffinity", set_affinity)
    bind_process({2, 3})
    assert bound == [(7, {2, 3}), (9, {2, 3})]


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
