"""Whole runs on a cluster: submitted by the real program, trained by Ray on two nodes and more."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clusters.slurm import SlurmCluster
from support.commands import Done, ran
from support.waiting import wait_until
from support.whole_run import Run

PATIENCE_S = 150
ON_TWO = {"options": ["--nodelist=node1,node2"]}  # node1 is the head then


class SlurmRun(Run):
    """One job file in a folder of the login node, and its submissions."""

    launcher = "slurm"
    patience_s = PATIENCE_S

    def __init__(self, cluster: SlurmCluster, folder: Path, name: str, **sections) -> None:
        slurm = {"time_limit": "10m", "output": str(folder), **sections.pop("slurm", {})}
        resources = {"workers": 2, "nodes": 2, "cpus_per_worker": 0.5, **sections.pop("resources", {})}
        super().__init__(folder, name, **sections, slurm=slurm, resources=resources)
        self.cluster = cluster
        self.job_id = ""
        self._asked_at = 0.0

    @property
    def environment(self) -> dict[str, str]:
        """Of the commands of this user."""
        return {**self.cluster.environment, "CLUSTERTRAIN_SITE": ""}

    def command(self, *arguments: str, code: int | None = None) -> Done:
        """Run `clustertrain …` on the login node."""
        argv = [sys.executable, "-m", "clustertrain.cli", *arguments]
        return ran(argv, code=code, cwd=self.folder, env=self.environment)

    def submit(self, *arguments: str) -> "SlurmRun":
        self.live, self.attempts_before = None, len(self.run_dir.attempts())
        self.command("submit", "--to", self.launcher, self.unchecked, str(self.job_file), *arguments, code=0)
        self.job_id = self.run_dir.submissions()[-1].job_id
        return self

    @property
    def output(self) -> str:
        """The job's output file."""
        path = self.folder / f"{self.name}-{self.job_id}.out"
        return path.read_text() if path.exists() else "(no output)"

    def wait(self, state: str, within_s: float = PATIENCE_S) -> str:
        """Until SLURM says that the job is in this state; returns the job's output."""
        try:
            self.cluster.wait_for_state(self.job_id, [state], within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None
        return self.output

    def wait_for_attempt(self, n: int) -> None:
        wait_until(lambda: len(self.run_dir.attempts()) >= n, PATIENCE_S, lambda: self.output)
        self.live, self.attempts_before = None, n - 1

    def _has_ended(self) -> str | None:
        """Asks SLURM at times, and takes no answer for a no."""
        if time.monotonic() < self._asked_at + 2:
            return None
        self._asked_at = time.monotonic()
        done = self.cluster.command(
            "squeue", "--noheader", f"--jobs={self.job_id}", "--format=%T", check=False
        )
        waits_or_runs = done.returncode != 0 or done.stdout.strip()
        return None if waits_or_runs else self.output

    def left_on_nodes(self) -> dict[str, object]:
        """What is there of the job on the nodes that are up: processes, ports, files."""
        found = {}
        for node in self.cluster.nodes:
            files = self.cluster.run_on(node, ["find", "/tmp", "/dev/shm", "-mindepth", "1", "-name", "ct-*"])
            left = self.cluster.processes_on(node), files.stdout.split()
            if any(left):
                found[node] = left
        return found

    def wait_for_nothing_left(self, within_s: float) -> None:
        wait_until(lambda: not self.left_on_nodes(), within_s, self.left_on_nodes)


def wait_for_no_process(cluster: SlurmCluster, nodes: Sequence[str], within_s: float) -> None:
    def left() -> dict[str, object]:
        return {node: found for node in nodes if (found := cluster.processes_on(node))}

    wait_until(lambda: not left(), within_s, left)


def preempt(run: SlurmRun) -> str:
    """A job that goes before it takes the nodes, and ends; returns the output of `run` after its end."""
    other = run.cluster.sbatch("--partition=high", "--nodes=3", "--exclusive", wrap="sleep 2")
    run.cluster.wait_for_state(other, ["COMPLETED"], 240)
    return run.wait("COMPLETED")
