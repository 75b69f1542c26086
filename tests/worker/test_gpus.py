"""The GPUs of a worker: refused if torch cannot use them; the CPUs near them; settings of their memory."""

import subprocess
import sys
from functools import partial

import pytest
import torch

from clustertrain.errors import ClusterError
from clustertrain.node.numa import numa_node_of
from clustertrain.worker.machine import gpu_affinity as placement
from clustertrain.worker.machine.gpu_affinity import bind_to_gpus, use_expandable_segments
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


GPU = "0000:1b:00.0"


@pytest.fixture
def machine(tmp_path):
    """Two NUMA nodes of four CPUs, and a GPU on the second one."""
    files = {
        "sys/bus/pci/devices/0000:1b:00.0/numa_node": "1\n",
        "sys/devices/system/node/node0/cpulist": "0-3\n",
        "sys/devices/system/node/node1/cpulist": "4-7\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "case",
    [
        (range(8), 4.0, {4, 5, 6, 7}, "bound to 4 CPUs of NUMA node 1, that of GPU 0000:1b:00.0"),
        (range(6), 2.5, None, "2 of the 6 CPUs of this worker are on NUMA node 1"),
        (range(8), 2.0, None, "and 3 workers with GPUs there × cpus_per_worker 2 = 6", GPU, GPU),
        (range(8), 1.0, {4, 5, 6, 7}, "bound to 4 CPUs", GPU, GPU, "0000:9a:00.0"),
    ],
)
def test_a_worker_is_bound_if_enough_cpus_are_its_own(machine, monkeypatch, case):
    allowed, cpus_per_worker, bound, line, *others = case
    found = []
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(allowed))
    monkeypatch.setattr(placement, "bind_process", found.append)
    monkeypatch.setattr(placement, "numa_node_of", partial(numa_node_of, root=machine))
    assert line in bind_to_gpus([GPU], [GPU, *others], cpus_per_worker)
    assert found == ([bound] if bound else [])


def test_without_numa_nodes_nothing_is_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "bind_process", pytest.fail)
    monkeypatch.setattr(placement, "numa_node_of", partial(numa_node_of, root=tmp_path))
    assert bind_to_gpus([GPU], [GPU], 1.0).startswith("not bound to CPUs: the GPUs are not on one of several")


def test_threads_and_children_that_start_later_are_bound_as_well():
    code = (
        "import os, threading, subprocess, sys\n"
        "from clustertrain.node.numa import bind_process\n"
        "cpu = min(os.sched_getaffinity(0))\n"
        "threads = [threading.Thread(target=threading.Event().wait, daemon=True)]\n"
        "threads[0].start()\n"
        "bind_process({cpu})\n"
        "found = [os.sched_getaffinity(int(t)) for t in os.listdir('/proc/self/task')]\n"
        "child = subprocess.run([sys.executable, '-c', 'import os; print(os.sched_getaffinity(0))'], "
        "capture_output=True, text=True).stdout.strip()\n"
        "assert len(found) >= 2 and all(each == {cpu} for each in found) and child == str({cpu}), found\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.fixture
def no_settings(monkeypatch):
    for name in placement._ALLOCATOR_NAMES:
        monkeypatch.setenv(name, "")  # what the code sets is removed after the test
        monkeypatch.delenv(name)


def test_memory_segments_are_expandable_for_children_and_this_process(no_settings, monkeypatch):
    calls = []
    monkeypatch.setattr("torch._C._accelerator_setAllocatorSettings", calls.append)
    use_expandable_segments(in_this_process=False)
    assert (placement.os.environ["PYTORCH_ALLOC_CONF"], calls) == ("expandable_segments:True", [])
    del placement.os.environ["PYTORCH_ALLOC_CONF"]
    use_expandable_segments(in_this_process=True)
    assert calls == ["expandable_segments:True"]


@pytest.mark.parametrize("name", placement._ALLOCATOR_NAMES)
def test_settings_of_the_user_stay(no_settings, monkeypatch, name):
    monkeypatch.setenv(name, "max_split_size_mb:128")
    monkeypatch.setattr("torch._C._accelerator_setAllocatorSettings", pytest.fail)
    use_expandable_segments(in_this_process=True)
    assert [n for n in placement._ALLOCATOR_NAMES if n in placement.os.environ] == [name]
