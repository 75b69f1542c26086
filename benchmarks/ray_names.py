"""The seconds that names of Ray's private API buy: runs with and without each of them, alternately.

    python benchmarks/ray_names.py [--rounds 5] [--only DatasetsCallback …]

In a run two ranks start, rank 1 kills itself, and they start again. Two times of each run: from the command
to the first start of rank 1, and from its kill to its second start. What buys nothing has to go.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import clustertrain

WITHOUT = {  # a file of the package, and what becomes of one text in it
    "dashboard": ("driver/ray_node.py", "if include_dashboard is not False:", "if True:"),
    "forks": ("driver/ray_node.py", "if variables.FORK_SERVER in os.environ:", "if False:"),
    "DatasetsCallback": ("driver/trainer.py", "(DatasetsCallback, Placement", "(Placement"),
}
JOB = """
name: a
function: one_kill:train
args: {{times: {folder}/times}}
storage: {folder}/runs
resources: {{workers: 2, cpus_per_worker: 0.5}}
"""
TRAIN = """
import os, signal, time
def train(config):
    if os.environ["RANK"] == "1":
        first = not os.path.exists(config["times"])
        with open(config["times"], "a") as file:
            print(time.time(), file=file)
        if first:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def seconds(package: Path) -> tuple[float, float]:
    """Those of one run of this copy of the package."""
    with tempfile.TemporaryDirectory(prefix="ray-names-") as folder:
        (Path(folder) / "one_kill.py").write_text(TRAIN)
        (Path(folder) / "job.yaml").write_text(JOB.format(folder=folder))
        began = time.time()
        command = [sys.executable, "-m", "clustertrain.cli", "run", "job.yaml"]
        environment = os.environ | {"PYTHONPATH": str(package)}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        first, second = map(float, (Path(folder) / "times").read_text().split())
        return first - began, second - first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WITHOUT, default=[*WITHOUT])
    options = parser.parse_args()
    for name in options.only:
        file, old, new = WITHOUT[name]
        with tempfile.TemporaryDirectory(prefix="ray-names-") as folder:
            ways = {way: Path(folder) / way for way in ("with", "without")}
            for way in ways.values():
                shutil.copytree(Path(clustertrain.__file__).parent, way / "clustertrain")
            text = (changed := ways["without"] / "clustertrain" / file).read_text()
            changed.write_text(text.replace(old, new)) if old in text else sys.exit(f"{file} has no {old}")
            found = [{way: seconds(package) for way, package in ways.items()} for _ in range(options.rounds)]
        for what, number in (("to the first start", 0), ("from the kill to the next start", 1)):
            for way in ways:
                values = sorted(each[way][number] for each in found)
                median = statistics.median(values)
                print(
                    f"{name}, {way}: {median:.2f} s {what} ({values[0]:.2f} to {values[-1]:.2f})", flush=True
                )


if __name__ == "__main__":
    main()
