"""How long a SLURM job takes from the start of its batch script to its first optimizer step: clustertrain
against the two scripts that Ray's documentation has for SLURM.

    python benchmarks/slurm_start.py [--rounds 5] [--nodes 2] [--json FILE]

The three run alternately on a SLURM cluster of namespaces on this machine (tests/clusters/slurm.py; root),
each with one worker and one CPU on every node, the same Python, the same bytecode, and the same function
(slurm_peers/first_step.py). The time is from the first command of the batch script to the end of rank 0's
first optimizer step. Before each start all nodes are idle, without processes of the previous start.

clustertrain does more in this time: it checks the storage from every node, claims the attempt, sets up Ray's
token, and unpacks the snapshot of the code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import yaml
from comparison.figures import HEAD_AND_WORKERS, SYMMETRIC_RUN
from comparison.figures import START as OURS
from comparison.turns import by_turns, parser_of, show, write

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "tests"))

from clusters.slurm import SlurmCluster, why_not  # noqa: E402  it is found by the line above

PEERS = CHECKOUT / "benchmarks" / "slurm_peers"
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
    HEAD_AND_WORKERS: submit_peer("head_and_workers.sbatch"),
    SYMMETRIC_RUN: submit_peer("symmetric_run.sbatch"),
}


def measure(cluster: SlurmCluster, folder: Path, submit: Submit, nodes: int) -> float:
    """Seconds from the batch script's first command to the first optimizer step, of one start on a cluster
    with nothing on it."""
    folder.mkdir()
    for node in cluster.nodes:
        cluster.run_on(node, ["find", "/tmp/ray", "-delete"], check=False)
    job = submit(cluster, folder, nodes)
    stepped, ends = folder / "stepped", time.monotonic() + _PATIENCE_S
    while not stepped.exists():
        if time.monotonic() > ends or cluster.job(job)["JobState"] not in ("PENDING", "RUNNING"):
            output = "\n".join(path.read_text() for path in folder.glob("start-*.out"))
            raise SystemExit(f"job {job} made no step: {cluster.job(job)['JobState']}\n{output}")
        time.sleep(0.5)
    cluster.heal()
    return float(stepped.read_text()) - float((folder / "started").read_text())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    options = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    for name in [name for name in os.environ if name.startswith(_NOT_FOR_A_JOB)]:
        del os.environ[name]  # what this shell says to Python and Ray is said to none of the jobs
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="slurm-start-") as name:
        folder = Path(name)
        with SlurmCluster(options.nodes, [folder], KillWait=2) as cluster:

            def start(number: int, side: str) -> float:
                own = folder / f"{number}-{side.replace(' ', '-')}"
                return measure(cluster, own, SIDES[side], options.nodes)

            found = by_turns(SIDES, options.rounds, start)
    write(options.json, found)
    show("to the first step", found, OURS)


if __name__ == "__main__":
    main()
