"""How many seconds `clustertrain run` takes to report a mistake in the user's code, beside its first step.

    python benchmarks/mistakes.py [--rounds 3]

Each mistake is made in the files of `clustertrain init`; the command is a whole process. The last row is a
run without a mistake, up to the line of its first step.
"""

from __future__ import annotations

import argparse
import os
import signal
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


def command(folder: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The words and the environment of a command."""
    return [*CLUSTERTRAIN, *arguments], {**os.environ, "XDG_STATE_HOME": str(folder / "state")}


def reported(folder: Path) -> tuple[float, str]:
    """(seconds to the end of a run, the first line of the message with which it ends)."""
    words, environment = command(folder, "run")
    started_s = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started_s
    if done.returncode != 2:
        raise SystemExit(f"The run ended with exit code {done.returncode}.\n{done.stdout}{done.stderr}")
    message = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    return seconds, message.removeprefix("error: ").replace(f"{folder}/", "")


def first_step(folder: Path) -> tuple[float, str]:
    """(seconds to the line of a run's first step, that line). The run is then interrupted."""
    words, environment = command(folder, "run", "--set", "train.log_every=1")
    started_s = time.perf_counter()
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        line = next(line for line in run.stdout or () if line.startswith("step 1/"))
        seconds = time.perf_counter() - started_s
        run.send_signal(signal.SIGINT)
        run.communicate()
    return seconds, line.strip()


def measure(mistake: tuple[str, str, str] | None) -> tuple[float, str]:
    """(seconds, what was printed)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words, environment = command(folder, "init", ".")
        subprocess.run(words, cwd=folder, env=environment, capture_output=True, check=True)
        if mistake is None:
            return first_step(folder)
        file, old, new = mistake
        text = (folder / file).read_text()
        if old not in text:
            raise SystemExit(f"{file} of `clustertrain init` has no {old!r}: change the table of mistakes.")
        (folder / file).write_text(text.replace(old, new, 1))
        return reported(folder)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=3)
    rounds = arguments.parse_args().rounds
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| mistake | median s | min | max | what is printed |")
    print("|---|---|---|---|---|")
    for name, mistake in {**MISTAKES, "(no mistake)": None}.items():
        found = [measure(mistake) for _ in range(rounds)]
        seconds, messages = zip(*found, strict=True)
        figures = f"{statistics.median(seconds):.1f} | {min(seconds):.1f} | {max(seconds):.1f}"
        print(f"| {name} | {figures} | {messages[0]} |", flush=True)


if __name__ == "__main__":
    main()
