"""Fixtures of the GPU suite. It ends with a table, and writes it as JSON to GPU_SUITE_JSON if that is set."""

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config

from clustertrain.training.ranks.distributed import RankInfo
from gpu.suite import IS_GPU, RANK, Row

torch._inductor.config.compile_threads = 1  # no processes beside those of a test

_PROPERTY = "gpu_row"


@pytest.fixture
def gpu() -> RankInfo:
    if IS_GPU:
        torch.cuda.set_device(0)
    return RANK


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def row(record_property: Any) -> Row:
    def add(what: str, unit: str, **measured: float) -> None:
        record_property(_PROPERTY, {"what": what, "unit": unit, **measured})

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        value
        for report in terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if not rows:
        return
    terminalreporter.section("measured")
    for key, value in _machine().items():
        terminalreporter.line(f"{key}: {value}")
    for each in rows:
        numbers = "  ".join(
            f"{key} {value:.4g}" for key, value in each.items() if key not in ("what", "unit")
        )
        terminalreporter.line(f"{each['what']:44} {numbers}  [{each['unit']}]")
    if path := os.environ.get("GPU_SUITE_JSON"):
        Path(path).write_text(json.dumps({"machine": _machine(), "rows": rows}, indent=1) + "\n")


def _machine() -> dict[str, str]:
    found = {"torch": torch.__version__, "python": platform.python_version()}
    if IS_GPU:
        found |= {
            "device": torch.cuda.get_device_name(0),
            "devices": str(torch.cuda.device_count()),
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return found
