"""The way to a run's storage in the cluster: its head's pod, else a short-lived reader pod."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.site import SiteJob
from clustertrain.launchers.known_runs import KnownRun
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed.run_storage import RunStorage
from clustertrain.launchers.kubernetes.observed.view import observe_run
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE, in_pods
from clustertrain.launchers.kubernetes.render.pods import RUN_LABEL
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.kubernetes.status import known_rows
from clustertrain.launchers.kubernetes.submit import SCHEDULER, handle_of, rayjob_of
from clustertrain.launchers.launcher import Echo, Target, known_run
from clustertrain.observe.run_table import RunRow

_IN_CLUSTER = (
    *(["ckpt", "ls"], ["ckpt", "verify"], ["data", "ls"], ["data", "verify"]),
    *(["checkpoint", "--now"], ["profile", "--now"]),
)


class KubernetesReach:
    """Implements `Reach` (launchers/launcher.py)."""

    def lines(self, target: Target, command: Sequence[str]) -> Iterator[str]:
        job = job_of(target)
        if [*command[:2]] not in _IN_CLUSTER:
            where = in_pods(job).storage
            raise JobError(
                f"`{' '.join(command[:2])}` writes files, and the storage of {job.name} is in the cluster: "
                f"{where.uri}.\nRun it on a machine or in a pod that can write to that storage."
            )
        yield from _storage_of(job).lines(*_arguments(command))

    def download(self, target: Target, command: Sequence[str], to: BinaryIO) -> None:
        _storage_of(job_of(target)).download(*_arguments(command), to=to)

    def found(self, job: SiteJob, job_file: str, echo: Echo) -> KnownRun | None:
        if job.image is None or shutil.which("kubectl") is None:
            return None  # it never ran there, or nothing can be asked
        try:
            rayjob = rayjob_of(Kubectl.of(job.section(Kubernetes)), job.name)
        except ClusterError as error:
            echo(f"note: Kubernetes was not asked: {str(error).splitlines()[0]}")
            return None
        if rayjob is None or rayjob["metadata"].get("labels", {}).get(RUN_LABEL) != job.name:
            return None
        return known_run(SCHEDULER, job, job_file, handle_of(job, rayjob))

    def runs(self, known: Sequence[KnownRun]) -> tuple[list[RunRow], list[str]]:
        return known_rows(known)


def job_of(target: Target) -> SiteJob:
    """The job as it was submitted. It has the cluster, the namespace and the run's name.

    Raises:
        JobError: neither a job file nor a known run was named.
    """
    if (job := target.submitted_job) is None:
        raise JobError(
            f"{target.text} is not a job file, and only a job file names the cluster.\nName the job file."
        )
    return job


def _storage_of(job: SiteJob) -> RunStorage:
    kubectl = Kubectl.of(job.section(Kubernetes))
    return RunStorage(job, kubectl, observe_run(job, kubectl, []).head)


def _arguments(command: Sequence[str]) -> list[str]:
    """The command on the job file of the pod."""
    return [*command[:2], JOB_FILE, *command[2:]]
