"""What tests on SLURM and on Kubernetes have in common. `run` is that cluster's own kind of Run."""

import json
from pathlib import Path

from support.whole_run import FAULTY

_DIGITS = Path(__file__).parents[2] / "examples" / "digits"
DIGITS = {
    "code": str(_DIGITS),
    "task": "digits:Digits",
    "args": {"lr": 0.002},
    "data": {"digits": {"uri": str(_DIGITS / "digits.tar.gz"), "extract": True}},
    "train": {"epochs": 15, "batch_size": 32, "seed": 0},
}
LONG = {"train": {"epochs": 400, "batch_size": 4, "log_every": 1}, "failures": {"retries": 0}}


def slow(step_s: float = 0.4) -> dict:
    """The job of `uninterrupted`, slowly: time to strike."""
    return {**FAULTY, "args": {"step_s": step_s}, "checkpoint": {"every": {"steps": 2}, "keep_last": 3}}


def drill_report(run, to: str, faults: str) -> dict:
    """What `clustertrain drill --json` reports."""
    done = run.command("drill", str(run.job_file), "--to", to, "--faults", faults, "--json", code=0)
    return json.loads(done.stdout)


def asked(run, command: str, *arguments: str, code: int = 0) -> str:
    """What a command says of the run; `code`: what it must end with."""
    return run.command(*command.split(), str(run.job_file), *arguments, code=code).stdout
