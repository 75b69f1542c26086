"""Whole runs as RayJobs: submitted by the real program, trained in pods, on a volume of this machine."""

import os
import sys
import time
from pathlib import Path

from clusters.kube import KubeCluster
from clusters.kube_api import Refused
from clustertrain.run_files.folder.run_dir import RunDir
from support.commands import Done, ran
from support.whole_run import FAULTY, Run

PATIENCE_S = 400  # what takes a minute alone takes several beside three others
CLAIM = "clustertrain"
_ENDS = ("Complete", "Failed", "ValidationFailed")

# The job of `uninterrupted`, which waits in mid-epoch for a file: see `RayJobRun.go_on`.
# It may wait longer than a step may take by default.
HELD = {
    **FAULTY,
    "task": "held:Held",
    "args": {"until": f"/mnt/{CLAIM}/go"},
    "failures": {"watchdog": {"step": "1h"}},
}
HELD_STEP = 3  # which is done by then


class RayJobRun(Run):
    """One job file, and the RayJobs that are made of it in a namespace."""

    patience_s = PATIENCE_S
    poll_s = 0.2

    def __init__(self, cluster: KubeCluster, namespace: str, folder: Path, name: str, **sections) -> None:
        section = {
            "namespace": namespace,
            "head": {"cpus": 0.5, "memory": "3Gi"},
            "pull_policy": "Never",
            "ttl": "5s",
            **sections.pop("kubernetes", {}),
        }
        resources = {
            "workers": 2,
            "cpus_per_worker": 0.4,
            "memory_per_worker": "1Gi",
            **sections.pop("resources", {}),
        }
        super().__init__(
            folder, name, **{"storage": "runs", **sections}, kubernetes=section, resources=resources
        )
        self.cluster, self.namespace = cluster, namespace
        self.volume = cluster.volume_folder(namespace, CLAIM)

    @property
    def run_dir(self) -> RunDir:
        return RunDir.newest(str(self.volume / "runs"), self.name)

    def command(self, *arguments: str, code: int | None = None) -> Done:
        """Run `clustertrain …` where kubectl finds the cluster."""
        argv = [sys.executable, "-m", "clustertrain.cli", *arguments]
        environment = {**os.environ, **self.cluster.environment, "CLUSTERTRAIN_SITE": ""}
        return ran(argv, code=code, cwd=self.folder, env=environment)

    def submit(self, *arguments: str) -> "RayJobRun":
        self.live, self.attempts_before = None, len(self.run_dir.attempts())
        self.command("submit", "--to", "kubernetes", self.unchecked, str(self.job_file), *arguments, code=0)
        return self

    def go_on(self) -> None:
        """What HELD waits for."""
        (self.volume / "go").touch()

    def status(self) -> dict:
        return self.cluster.get("rayjobs", self.name, self.namespace).get("status", {})

    def pods(self, role: str) -> list[str]:
        """Names, without those that are on their way out."""
        selector = f"clustertrain.io/run={self.name},clustertrain.io/role={role}"
        found = [each["metadata"] for each in self.cluster.items("pods", self.namespace, selector)]
        return [each["name"] for each in found if "deletionTimestamp" not in each]

    def wait(self, state: str = "Complete", within_s: float = PATIENCE_S) -> None:
        """Until the RayJob is there: Complete or Failed."""

        def is_over(rayjobs: list[dict]) -> bool:
            return any(each.get("status", {}).get("jobDeploymentStatus") in _ENDS for each in rayjobs)

        otherwise = f"{self.name} does not end"
        self.cluster.watch("rayjobs", self.namespace, is_over, within_s, otherwise, name=self.name)
        status = self.status()
        assert status.get("jobDeploymentStatus") == state, f"waited for {state}: {status}\n{self.story()}"

    def wait_for_attempt(self, n: int) -> None:
        ends = time.monotonic() + PATIENCE_S
        while len(self.run_dir.attempts()) < n:
            assert time.monotonic() < ends, f"no attempt {n} within {PATIENCE_S} s\n{self.story()}"
            time.sleep(0.3)
        self.live, self.attempts_before = None, n - 1

    def wait_until_the_cluster_is_gone(self, within_s: float = 90) -> None:
        selector = f"clustertrain.io/run={self.name},clustertrain.io/role in (head,worker)"
        self.cluster.wait_until_gone("pods", self.namespace, within_s, selector=selector)

    def story(self) -> str:
        """The pods' logs and the events, for a test that failed."""
        logs = []
        for pod in self.cluster.items("pods", self.namespace):
            name = pod["metadata"]["name"]
            logs.append(f"--- {name}: {pod['status'].get('phase')}\n{self._last_lines(pod)}")
        return "\n".join([*logs, *self.cluster.events(self.namespace)[-15:]])

    def _last_lines(self, pod: dict) -> str:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        try:
            return self.cluster.logs(self.namespace, name, container=container, tailLines="15")
        except Refused as refused:  # it has not begun
            return str(refused)

    def _has_ended(self) -> str | None:
        return self.story() if self.status().get("jobDeploymentStatus") in _ENDS else None
