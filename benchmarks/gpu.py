"""The first hour on a GPU: seven measurements in 25 minutes, the most valuable first. Needs torch and pytest.

    python benchmarks/gpu.py OUT [NUMBER…]

Each measurement runs in a process of its own with a limit, and its result is in OUT/gpu.json as soon as it is
known: a machine that is taken away leaves the others. GPU_BENCH_CPU=1 runs all with tiny sizes on a CPU: that
proves this program, not a GPU.

1  the machine, and the repository's own suite for GPUs (make test-gpu)
2  implicit synchronizations of a step, with the lines that cause them
3  a step against a loop written by hand with the same batches: bound by the GPU and by launches, compiled
4  resumed in a new process against uninterrupted, bit by bit, for six settings
5  how long a save of 8 GiB blocks, against torch's pinned copy, and what reserving buffers costs the steps
6  DDP and FSDP with NCCL on one rank: compile, accumulation, checkpointing, clipping, parts written and read
7  the texts of real faults through the diagnosis; TF32 against fp32
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_states
import gpu_steps
import torch
from gpu_decoder import DEVICE, IS_GPU, ROOT, seconds_of


def machine(out: Path) -> dict[str, Any]:
    """The machine, and the repository's own suite."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "gcc": shutil.which("gcc"),
        "Python.h": (Path(sysconfig.get_path("include")) / "Python.h").exists(),
        "cpus": len(os.sched_getaffinity(0)),
    }
    if IS_GPU:
        asked = "name,driver_version,memory.total,mig.mode.current,clocks.max.sm"
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        found["nvidia-smi"] = subprocess.run(
            command, capture_output=True, text=True, check=False
        ).stdout.strip()
        suite = subprocess.run(
            ["make", "test-gpu", f"PYTHON={sys.executable}"],
            env={**os.environ, "GPU_SUITE_JSON": str(out / "suite.json")},
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        found |= {"suite_code": suite.returncode, "suite": suite.stdout[-6000:]}
    return found


def faults() -> dict[str, Any]:
    """The texts of a real OOM and of a device assert through the diagnosis; TF32 against fp32."""
    from clustertrain.driver.cause.diagnosis import Node, diagnose  # the others need no more than torch
    from clustertrain.driver.cause.gpu_facts import Gpus
    from clustertrain.node.gpus import gpu_states as states_of
    from clustertrain.node.gpus import visible_gpus
    from clustertrain.node.limits import read_limits
    from clustertrain.observe.explain.first_cause import shows_lost_peer

    found: dict[str, Any] = {"nvml": [str(state) for state in states_of(visible_gpus())]}
    if not IS_GPU:
        return found
    try:
        torch.empty(2**50, dtype=torch.uint8, device=DEVICE)
    except torch.OutOfMemoryError as error:
        text = f"OutOfMemoryError: {error}"
        gpus = Gpus(states_of(visible_gpus()), [os.getpid()], "node")
        diagnosis = diagnose("rank 0", text, Node(read_limits(), gpus=gpus))
        found |= {"out of memory": text, "its diagnosis": str(diagnosis)}
    program = "import torch; x = torch.zeros(4, device='cuda'); x[torch.tensor([9], device='cuda')].cpu()"
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found |= {"a device assert": printed[-1500:], "is its own fault": not shows_lost_peer(printed)}
    a = torch.randn(4096, 4096, device=DEVICE)
    exact = a.double() @ a.double()
    for precision in ("high", "highest"):
        torch.set_float32_matmul_precision(precision)
        product = a @ a
        seconds = seconds_of(lambda: [torch.mm(a, a) for _ in range(20)])
        error_of = float((product.double() - exact).norm() / exact.norm())
        found[f"matmul {precision}"] = {
            "TFLOP/s": 20 * 2 * 4096**3 / seconds / 1e12,
            "relative error": error_of,
        }
    return found


Measurement = Callable[[Path], dict[str, Any]]
MEASUREMENTS: dict[int, tuple[float, Measurement]] = {  # the limit in seconds
    1: (360, machine),
    2: (90, lambda out: gpu_steps.synchronizations()),
    3: (300, lambda out: gpu_steps.against_a_loop_by_hand()),
    4: (330, gpu_states.resumes),
    5: (150, lambda out: gpu_states.saves()),
    6: (180, gpu_states.on_one_rank),
    7: (60, lambda out: faults()),
}
_RESULT = "RESULT "


def measured(number: int, out: Path) -> dict[str, Any]:
    """The result of a measurement in a process of its own."""
    began, limit_s = time.monotonic(), MEASUREMENTS[number][0]
    command = [sys.executable, __file__, str(out), "--in-this-process", str(number)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith(_RESULT)]
        failed = {"code": done.returncode, "error": done.stderr[-3000:]}
        result = json.loads(lines[-1].removeprefix(_RESULT)) if lines else failed
    except subprocess.TimeoutExpired as late:
        result = {"error": f"it ran past its limit of {limit_s:g} s", "stderr": str(late.stderr)[-2000:]}
    return {"wall_s": round(time.monotonic() - began, 1), "result": result}


def main(folder: str, *arguments: str) -> None:
    out = Path(folder).absolute()
    out.mkdir(parents=True, exist_ok=True)
    if arguments[:1] == ("--in-this-process",):
        print(_RESULT + json.dumps(MEASUREMENTS[int(arguments[1])][1](out), default=str), flush=True)
        return
    results: dict[int, Any] = {}
    for number in map(int, arguments or MEASUREMENTS):
        results[number] = measured(number, out)
        (out / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
        print(
            number, results[number]["wall_s"], "s", json.dumps(results[number]["result"])[:1500], flush=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
