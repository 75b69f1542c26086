"""The launcher for Kubernetes clusters with KubeRay. It reads the storage of a run through a pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.job.site import SiteJob
from clustertrain.launchers.known_runs import KnownRun
from clustertrain.launchers.kubernetes import status, stop
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.exec_in_pod import exec_in_pod
from clustertrain.launchers.kubernetes.observed import logs
from clustertrain.launchers.kubernetes.observed.first_word import first_word
from clustertrain.launchers.kubernetes.observed.view import kubectl_for
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.kubernetes.storage import KubernetesReach, job_of
from clustertrain.launchers.kubernetes.submit import SCHEDULER
from clustertrain.launchers.launcher import Echo, Launcher, Target
from clustertrain.observe.columns import Columns
from clustertrain.observe.logs import LogSelection
from clustertrain.observe.run_table import Table
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run.admission import Options


class KubernetesLauncher(Launcher):
    """Runs whose state and storage are read in their cluster."""

    reach = KubernetesReach()

    def submit(self, job: SiteJob, options: Options, echo: Echo) -> KnownRun | None:
        known = super().submit(job, options, echo)
        echo(first_word(job, Kubectl.of(job.section(Kubernetes))))
        return known

    def follow(self, target: Target, echo: Echo) -> int:
        command = target.command(f"submit --to {self.name}")
        return status.follow_to_its_end(job_of(target), command, echo)

    def status(self, target: Target) -> StoredStatus:
        return status.status_of(job_of(target))

    def logs(self, target: Target, selection: LogSelection, *, follow: bool) -> Iterator[str]:
        return logs.log_lines(job_of(target), selection, follow=follow)

    def stop(self, target: Target, echo: Echo, *, wait: bool) -> None:
        stop.stop(job_of(target), echo, wait=wait)

    def exec(self, target: Target, rank: int, command: Sequence[str]) -> int:
        return exec_in_pod(job_of(target), rank, command)

    def ls(self, place: str | None, namespace: str | None, columns: Columns) -> Table:
        if columns.headers:
            raise JobError(
                "--args and --metric: --to kubernetes lists RayJobs, without their storage.\n"
                "Use `clustertrain ls` without --to."
            )
        if place is not None and not Path(place).is_file():
            raise JobError(
                f"{place} is not a job file, and only a job file names the cluster.\nName the job file."
            )
        return status.table_of(kubectl_for(place, namespace))


LAUNCHER = KubernetesLauncher(SCHEDULER)
