"""How many seconds `clustertrain run` takes to report a mistake in the user's code.

    python benchmarks/mistakes.py [--rounds 3]

Each mistake is made in the files of `clustertrain init`; the command is a whole process. No start may claim
an attempt, so Ray never starts. The last row is the check of code without a mistake. CPU seconds are those of
the command and of the processes that it started: on a busy machine they are the measure.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLUSTERTRAIN = [sys.executable, "-m", "clustertrain.cli"]
# mistake: (file, what it has, what it gets)
MISTAKES = {
    "a key of the job file is misspelled": ("job.yaml", "epochs: 20", "epoch: 20"),
    "a syntax error": ("task.py", "def model(self):", "def model(self)"),
    "the module is misspelled": ("job.yaml", "task:SineTask", "taks:SineTask"),
    "the class is misspelled": ("job.yaml", "task:SineTask", "task:SinTask"),
    "an argument is misspelled": ("job.yaml", "hidden: 64", "hiden: 64"),
    "an argument is text, not a number": ("job.yaml", "lr: 0.01", 'lr: "0.01"'),
    "a package is missing": ("task.py", "import torch\n", "import torch\nimport no_such_package\n"),
    "a name is not defined in model()": ("task.py", "nn.Tanh()", "nn.Tahn()"),
    "the shapes do not fit": ("task.py", "nn.Linear(self.hidden, 1)", "nn.Linear(self.hidden + 1, 1)"),
    "keep_best names no metric": ("job.yaml", "  keep_last: 2", "  keep_best: {metric: acc, mode: max}"),
}


def start(folder: Path, *command: str) -> tuple[float, float, subprocess.CompletedProcess[str]]:
    """(seconds to the end of the command, its CPU seconds, the command)."""
    started_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*CLUSTERTRAIN, *command],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds, after = time.perf_counter() - started_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


def measure(mistake: tuple[str, str, str] | None) -> tuple[float, float, str]:
    """(seconds, CPU seconds, the first line of the message)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start(folder, "init", ".")
        if mistake is None:
            seconds, cpu_s, done = start(folder, "check")
            return seconds, cpu_s, (done.stdout or done.stderr).splitlines()[0]
        file, old, new = mistake
        text = (folder / file).read_text()
        if old not in text:
            raise SystemExit(f"{file} of `clustertrain init` has no {old!r}: change the table of mistakes.")
        (folder / file).write_text(text.replace(old, new, 1))
        seconds, cpu_s, done = start(folder, "run")
        if done.returncode == 0 or list(folder.glob("runs/*/g*/attempts/*")):
            raise SystemExit(f"{mistake}: the run started.\n{done.stdout}{done.stderr}")
        message = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
        return seconds, cpu_s, message.removeprefix("error: ").replace(f"{folder}/", "")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=3)
    rounds = arguments.parse_args().rounds
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| mistake | median s | min | max | CPU s | the first line of the message |")
    print("|---|---|---|---|---|---|")
    for name, mistake in {**MISTAKES, "(no mistake: `check`)": None}.items():
        found = [measure(mistake) for _ in range(rounds)]
        seconds, cpu_s, messages = zip(*found, strict=True)
        figures = f"{statistics.median(seconds):.1f} | {min(seconds):.1f} | {max(seconds):.1f}"
        print(f"| {name} | {figures} | {statistics.median(cpu_s):.1f} | {messages[0]} |", flush=True)


if __name__ == "__main__":
    main()
