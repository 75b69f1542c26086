"""How long a SLURM job takes from the start of its batch script to its first optimizer step: clustertrain
against the two scripts that Ray's documentation has for SLURM.

    python benchmarks/slurm_start.py [--rounds 5] [--nodes 2] [--whole] [--json FILE]

The three run alternately on a SLURM cluster of namespaces on this machine (tests/clusters/slurm.py; root),
each with one worker and one CPU on every node, the same Python, the same bytecode, and the same function
(slurm_peers/first_step.py). The time is from the first command of the batch script to the end of rank 0's
first optimizer step; with --whole also to the end of the job. Before each start all nodes are idle, without
processes of the previous start.

clustertrain does more in this time: it checks the storage from every node, claims the attempt, sets up Ray's
token, and unpacks the snapshot of the code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import yaml
from comparison.results import print_table

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "tests"))

from clusters.slurm import SlurmCluster, why_not  # noqa: E402  it is found by the line above

PEERS = CHECKOUT / "benchmarks" / "slurm_peers"
OURS = "clustertrain"
GOALS = {"head and workers": 0.6, "ray symmetric-run": 0.35}
_PATIENCE_S = 300.0
_NOT_FOR_A_JOB = ("CLUSTERTRAIN_", "OMP_", "PYTHON", "RAY_")

Submit = Callable[[SlurmCluster, Path, int], str]
"""Sends the job; given the cluster, a folder of this start's own, and the number of nodes; returns the id of
the job. In the folder the job writes `started`, the time of its first command, and `stepped`."""


def submit_ours(cluster: SlurmCluster, folder: Path, nodes: int) -> str:
    """`clustertrain submit`, as a user does."""
    job = {
        "name": "start",
        "code": str(PEERS),
        "function": "first_step:train",
        "args": {"note": str(folder / "stepped")},
        "storage": str(folder / "runs"),
        "resources": {"workers": nodes, "nodes": nodes, "cpus_per_worker": 1},
        "slurm": {
            "time_limit": "10m",
            "output": str(folder),
            "setup": [f"date +%s.%N > {quote(str(folder / 'started'))}"],
        },
    }
    (folder / "start.yaml").write_text(yaml.safe_dump(job))
    subprocess.run(
        [sys.executable, "-m", "clustertrain.cli", "submit", "--to", "slurm", "start.yaml"],
        cwd=folder,
        env={**cluster.environment, "CLUSTERTRAIN_SITE": ""},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return next(folder.glob("runs/**/slurm-*.json")).stem.removeprefix("slurm-")


def submit_peer(script: str) -> Submit:
    """`sbatch` of a script in slurm_peers/."""

    def submit(cluster: SlurmCluster, folder: Path, nodes: int) -> str:
        program = [str(PEERS / "first_step.py"), str(folder / "stepped"), str(nodes), str(folder / "ray")]
        options = [f"--nodes={nodes}", f"--output={folder}/start-%j.out"]
        return cluster.sbatch(*options, str(PEERS / script), str(folder / "started"), *program)

    return submit


SIDES: dict[str, Submit] = {
    OURS: submit_ours,
    "head and workers": submit_peer("head_and_workers.sbatch"),
    "ray symmetric-run": submit_peer("symmetric_run.sbatch"),
}


@dataclass(frozen=True)
class Measured:
    """Seconds from the batch script's first command to the first optimizer step, and to the job's end."""

    step_s: float
    end_s: float | None


def measure(cluster: SlurmCluster, folder: Path, submit: Submit, nodes: int, *, whole: bool) -> Measured:
    """One start, on a cluster with nothing on it."""
    for node in cluster.nodes:
        cluster.run_on(node, ["find", "/tmp/ray", "-delete"], check=False)
    job = submit(cluster, folder, nodes)
    stepped, ends = folder / "stepped", time.monotonic() + _PATIENCE_S
    while not stepped.exists():
        if time.monotonic() > ends or cluster.job(job)["JobState"] not in ("PENDING", "RUNNING"):
            output = "\n".join(path.read_text() for path in folder.glob("start-*.out"))
            raise SystemExit(f"job {job} made no step: {cluster.job(job)['JobState']}\n{output}")
        time.sleep(0.5)
    started = float((folder / "started").read_text())
    if whole:
        cluster.wait_for_state(job, ["COMPLETED"], _PATIENCE_S)
    end_s = time.time() - started if whole else None
    cluster.heal()
    return Measured(float(stepped.read_text()) - started, end_s)


def measure_all(folder: Path, rounds: int, nodes: int, *, whole: bool) -> dict[str, list[Measured]]:
    """The sides by turns, after one start of each that does not count: it reads what is then in memory."""
    found: dict[str, list[Measured]] = {side: [] for side in SIDES}
    with SlurmCluster(nodes, [folder], KillWait=2) as cluster:
        for number in range(rounds + 1):
            for side, submit in SIDES.items():
                start = folder / f"{number}-{side.replace(' ', '-')}"
                start.mkdir()
                measured = measure(cluster, start, submit, nodes, whole=whole)
                print(f"round {number}  {side:18} {measured.step_s:6.1f} s", file=sys.stderr, flush=True)
                if number:
                    found[side].append(measured)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="time each job to its end as well")
    parser.add_argument("--json", type=Path, help="write the seconds to the first step")
    options = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    for name in [name for name in os.environ if name.startswith(_NOT_FOR_A_JOB)]:
        del os.environ[name]  # what this shell says to Python and Ray is said to none of the jobs
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="slurm-start-") as folder:
        found = measure_all(Path(folder), options.rounds, options.nodes, whole=options.whole)
    steps = {side: [each.step_s for each in all_] for side, all_ in found.items()}
    if options.json:
        options.json.write_text(json.dumps(steps))
    print_table("to the first step", steps, OURS)
    print("goals:", ", ".join(f"{goal} of {side}" for side, goal in GOALS.items()))
    if options.whole:
        ends = {side: [m.end_s for m in all_ if m.end_s is not None] for side, all_ in found.items()}
        print_table("to the end of the job", ends, OURS)


if __name__ == "__main__":
    main()
