"""Commands without a training, and the programs of benchmarks/ that measure saves and copies."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from comparison.figures import RENDER
from comparison.processes import run, running, wait_for

BENCHMARKS = Path(__file__).resolve().parents[1]
_PATIENCE_S = 3600.0  # a cluster is made, and all its rounds are measured
_JOB = {"name": "big", "script": "train.py", "storage": "runs"}
_SLURM = {"resources": {"workers": 80_000, "nodes": 10_000}, "slurm": {"time_limit": "1h"}}
CLUSTERTRAIN = {
    "clustertrain --help": ["--help"],
    "clustertrain check --no-code": ["check", "--no-code", "job.yaml"],
    RENDER: ["render", "--to", "slurm", "big.yaml"],
}


def command(arguments: Sequence[str], folder: Path) -> tuple[float, float]:
    """(seconds, MB) of a command of clustertrain, with the job files that it may read."""
    (folder / "train.py").write_text("print('trains')\n")
    for name, job in (("job.yaml", _JOB), ("big.yaml", {**_JOB, **_SLURM})):
        (folder / name).write_text(yaml.safe_dump(job))
    paths = [str(folder / each) if each.endswith(".yaml") else each for each in arguments]
    found = run([sys.executable, "-m", "clustertrain.cli", *paths])
    return found.wall_s, found.rss_bytes / 1e6


def measured_by(program: str, arguments: Sequence[str], folder: Path) -> Mapping[str, list[float]]:
    """The seconds of each side, as a program of this folder writes them with `--json`."""
    argv = [sys.executable, str(BENCHMARKS / program), *arguments, "--json", "found.json"]
    with running(argv, folder) as process:
        wait_for(process, folder, lambda: process.poll() == 0, 0.05, _PATIENCE_S)
    found: dict[str, list[float]] = json.loads((folder / "found.json").read_text())
    return found


def copies_missing() -> str:
    """Why staging.py cannot run here."""
    server = Path(sys.executable).parent / "versitygw"
    return "" if server.exists() and importlib.util.find_spec("awscli") else "not installed"
