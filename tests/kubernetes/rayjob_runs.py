"""Whole runs as RayJobs: submitted by the real program, trained in pods, on a volume of this machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

from clusters.kube import KubeCluster
from clustertrain.run.folder import RunDir
from whole_run import Run

PATIENCE_S = 400  # what takes a minute alone takes several beside three others
CLAIM = "clustertrain"
FAULTY = {"task": "faulty:Faulty", "train": {"epochs": 3, "batch_size": 4, "log_every": 1}}


def slow(step_s: float = 0.5) -> dict:
    """The job of `uninterrupted`, slowly: time to strike."""
    return {**FAULTY, "args": {"step_s": step_s}, "checkpoint": {"every": {"steps": 2}, "keep_last": 3}}


# The job of `uninterrupted`, which waits in mid-epoch for a file: see `RayJobRun.go_on`.
HELD = {**FAULTY, "task": "held:Held", "args": {"until": f"/mnt/{CLAIM}/go"}}
HELD_STEP = 3  # which is done by then


class RayJobRun(Run):
    """One job file, and the RayJobs that are made of it in a namespace."""

    patience_s = PATIENCE_S
    poll_s = 1.0  # each look is a kubectl, which takes CPU from the pods

    def __init__(self, cluster: KubeCluster, namespace: str, folder: Path, name: str, **sections) -> None:
        section = {
            "namespace": namespace,
            "head": {"cpus": 0.5, "memory": "3Gi"},
            "pull_policy": "Never",
            "ttl": "5s",
            **sections.pop("kubernetes", {}),
        }
        resources = {"workers": 2, "cpus_per_worker": 0.4, **sections.pop("resources", {})}
        super().__init__(
            folder, name, **{"storage": "runs", **sections}, kubernetes=section, resources=resources
        )
        self.cluster, self.namespace = cluster, namespace
        self.volume = cluster.volume_folder(namespace, CLAIM)

    @property
    def run_dir(self) -> RunDir:
        return RunDir.newest(str(self.volume / "runs"), self.name)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `clustertrain …` where kubectl finds the cluster."""
        return subprocess.run(
            [sys.executable, "-m", "clustertrain.cli", *arguments],
            cwd=self.folder,
            env={**os.environ, **self.cluster.environment, "CLUSTERTRAIN_SITE": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def submit(self, *arguments: str) -> "RayJobRun":
        self.live, self.attempts_before = None, len(self.run_dir.attempts())
        done = self.command("submit", "--to", "kubernetes", str(self.job_file), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return self

    def go_on(self) -> None:
        """What HELD waits for."""
        (self.volume / "go").touch()

    def status(self) -> dict:
        return self.cluster.get("rayjob", self.name, self.namespace).get("status", {})

    def pods(self, role: str, leaving: bool = False) -> list[str]:
        """Names; those that are on their way out only where asked for."""
        selector = f"clustertrain.io/run={self.name},clustertrain.io/role={role}"
        found = self.cluster.items("pods", self.namespace, selector)
        return [
            each["metadata"]["name"]
            for each in found
            if leaving or "deletionTimestamp" not in each["metadata"]
        ]

    def wait(self, state: str = "Complete", within_s: float = PATIENCE_S) -> None:
        """Until the RayJob is there: Complete or Failed."""
        ends = time.monotonic() + within_s
        while (status := self.status()).get("jobDeploymentStatus") != state:
            over = status.get("jobDeploymentStatus") in ("Complete", "Failed", "ValidationFailed")
            if over or time.monotonic() > ends:
                raise AssertionError(f"waited for {state}: {status}\n{self.story()}")
            time.sleep(self.poll_s)

    def wait_for_attempt(self, n: int) -> None:
        ends = time.monotonic() + PATIENCE_S
        while len(self.run_dir.attempts()) < n:
            assert time.monotonic() < ends, f"no attempt {n} within {PATIENCE_S} s\n{self.story()}"
            time.sleep(0.3)
        self.live, self.attempts_before = None, n - 1

    def wait_until_the_cluster_is_gone(self, within_s: float = 90) -> None:
        ends = time.monotonic() + within_s
        while left := [*self.pods("head", leaving=True), *self.pods("worker", leaving=True)]:
            assert time.monotonic() < ends, left
            time.sleep(0.5)

    def story(self) -> str:
        """The pods' logs and the events, for a test that failed."""
        logs = []
        for pod in self.cluster.items("pods", self.namespace):
            name = pod["metadata"]["name"]
            done = self.cluster.kubectl("logs", name, "--tail=15", namespace=self.namespace, check=False)
            logs.append(f"--- {name}: {pod['status'].get('phase')}\n{done.stdout}")
        return "\n".join([*logs, *self.cluster.events(self.namespace)[-15:]])

    def _has_ended(self) -> str | None:
        status = self.status().get("jobDeploymentStatus")
        return self.story() if status in ("Failed", "ValidationFailed", "Complete") else None
