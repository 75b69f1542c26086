"""What ended a worker on its GPU, from the texts of the libraries.

They are from `strings` on libc10_cuda.so (torch 2.13), libcudart.so.13, libcudnn_graph.so.9 and libnccl.so.2
(2.29.7); the tests at the end look for their constant parts there.
"""

from pathlib import Path

import pytest
import torch

from clustertrain.driver.cause.diagnosis import RETRY_AFTER_S, NodeFacts, diagnose
from clustertrain.driver.cause.gpu_facts import Gpus
from clustertrain.node import gpus as node_gpus
from clustertrain.node.limits import read_limits
from clustertrain.observe.explain.catalogue import RunKind
from clustertrain.run_files.states import STATES

OUT_OF_MEMORY, LIMIT, GPU = "out_of_memory", "limit", "gpu"
WHO = "rank 1 (pid 4711 on node7)"
H100 = node_gpus.Gpu("GPU-a", "00000000:1B:00.0", "NVIDIA H100 80GB HBM3")
PLACE = "GPU-a at PCI address 00000000:1B:00.0 (NVIDIA H100 80GB HBM3)"
OTHER = node_gpus.GpuProcess(99, 40 << 30)


def found(message, *processes, gpus=None, **more):
    states = [node_gpus.GpuState(H100, processes)] if gpus is None else gpus
    gpus = Gpus(states, {4711}, "node7")
    return diagnose(WHO, message, NodeFacts(read_limits(), gpus=gpus), **more)


def out_of_memory(*, free="4.00 GiB", own="34.00 GiB", others="Process 99 has 40.00 GiB memory in use. "):
    return (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of "
        f"79.15 GiB of which {free} is free. {others}Including non-PyTorch memory, this process has {own} "
        "memory in use. Of the allocated memory 32.11 GiB is allocated by PyTorch, and 1.20 GiB is reserved "
        "by PyTorch but unallocated."
    )


@pytest.mark.parametrize(
    "message",
    [
        out_of_memory(own="78.00 GiB", free="0.50 GiB", others=""),
        out_of_memory(others="Process 4711 has 40.00 GiB memory in use. "),  # another rank on this GPU
        "RuntimeError: CUDA error: out of memory",
        "ValueError: the GPU is busy",
        "",
    ],
    ids=["its own memory", "another rank", "no numbers", "a user's text", "nothing"],
)
def test_other_texts_are_none_of_these(message):
    diagnosis = found(message, OTHER)
    assert diagnosis is None or (diagnosis.retry_after_s is None and "other processes" not in diagnosis.text)


@pytest.mark.parametrize("processes", [[OTHER], []], ids=["taken", "by nobody known"])
def test_a_gpu_that_is_taken_is_waited_for(processes):
    text = "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    diagnosis = found(text, *processes)
    assert (diagnosis.entry.ends_as, diagnosis.retry_after_s) == (GPU, RETRY_AFTER_S)
    assert f"busy or unavailable: GPU {PLACE}." in diagnosis.text
    assert ("process 99 with 40.0 GiB" in diagnosis.text) == bool(processes)


@pytest.mark.parametrize(
    "text",
    [
        "uncorrectable ECC error encountered",
        "uncorrectable NVLink error detected during the execution",
        "Invalid access of peer GPU memory over nvlink or a hardware error",
    ],
)
def test_a_broken_gpu_is_named_with_its_node(text):
    log = f"[rank1]: Process group watchdog thread terminated with exception: CUDA error: {text}\n"
    diagnosis = found(log)
    assert (diagnosis.entry.ends_as, diagnosis.retry_after_s) == (GPU, 0.0)
    assert diagnosis.entry.ends_as in STATES["failed"].causes
    assert f"{text}: a hardware error of GPU {PLACE}.\n" in diagnosis.text
    assert diagnosis.of_hardware and "--exclude=node7" in diagnosis.text
    assert "GPU of unknown number" in found(log, gpus=[]).text


def test_a_missing_service_of_nvswitch_is_named():
    diagnosis = found("AcceleratorError: CUDA error: system not yet initialized")
    assert "(CUDA error 802): GPUs that are connected by NVSwitch need the service nvidia" in diagnosis.text
    assert diagnosis.of_hardware and "--exclude=node7" in diagnosis.text


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.29.7\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 2 'out of memory'",
    ],
    ids=["cuDNN", "NCCL"],
)
def test_memory_that_a_library_did_not_get(text):
    diagnosis = found(text)
    assert (diagnosis.entry.ends_as, diagnosis.retry_after_s) == (OUT_OF_MEMORY, None)
    last = text.splitlines()[-1]
    assert f"{WHO}: {last}\nNCCL or cuDNN got no memory on the GPU" in diagnosis.text
    assert (
        diagnosis.entry.change_for(RunKind()) in diagnosis.text
        and "lower `train.batch_size`" in diagnosis.text
    )


SHM = (
    "Error while creating shared memory segment /dev/shm/nccl-gJ0Y5q (size 9637888), "
    "error: No space left on device (28)"
)


@pytest.mark.parametrize("where", ["message", "tail"])
def test_the_shared_memory_of_nccl(where):
    in_log = {"tail": f"a\n{SHM}\nb"} if where == "tail" else {}
    diagnosis = found("DistBackendError: NCCL error" if in_log else SHM, **in_log)
    assert (diagnosis.entry.ends_as, diagnosis.retry_after_s) == (LIMIT, None)
    assert f"{WHO}: {SHM}\n/dev/shm is too small for NCCL. /dev/shm has " in diagnosis.text
    assert "--shm-size" in diagnosis.text and "loader" not in diagnosis.text


LIBRARIES = {
    "libc10_cuda.so": [
        "CUDA out of memory. Tried to allocate ",
        " has a total capacity of ",
        " memory in use. ",
        "Including non-PyTorch memory, this process",
    ],
    "libcudart.so.13": [
        "CUDA-capable device(s) is/are busy or unavailable",
        "uncorrectable ECC error encountered",
        "uncorrectable NVLink error detected during the execution",
        "Invalid access of peer GPU memory over nvlink or a hardware error",
        "unspecified launch failure",
        "unknown error",
        "system not yet initialized",
    ],
    "libcudnn_graph.so.9": ["CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"],
    "libnccl.so.2": [
        "Cuda failure %d '%s'",
        "Error while %s shared memory segment %s (size %ld), error: %s (%d)",
    ],
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_texts_are_those_of_the_library(library):
    packages = Path(torch.__file__).parents[1]
    files = [*packages.glob(f"torch/lib/{library}"), *packages.glob(f"nvidia/*/lib/{library}")]
    if not files:
        pytest.skip(f"this torch brings no {library}")
    content = files[0].read_bytes()
    assert [text for text in LIBRARIES[library] if text.encode() not in content] == []
