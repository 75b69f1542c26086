"""The launcher for Kubernetes clusters with KubeRay. It reads the storage of a run through a pod."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.job.site import with_site
from clustertrain.launchers.known_runs import KnownRun, by_name
from clustertrain.launchers.kubernetes import status, stop, storage, submit
from clustertrain.launchers.kubernetes.check import check
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed import logs
from clustertrain.launchers.kubernetes.observed.first_word import first_word
from clustertrain.launchers.kubernetes.observed.view import kubectl_for
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.launcher import Checked, Echo, Target
from clustertrain.observe.columns import Columns
from clustertrain.observe.logs import LogSelection
from clustertrain.observe.run_table import RunRow, Table
from clustertrain.observe.status import RunFiles, Status, status_by_files
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run.admission import Options


class KubernetesLauncher:
    """Submits, observes and stops runs as RayJobs."""

    name = "kubernetes"
    storage_visible = False

    def check(self, job_file: str, sets: Sequence[str]) -> Checked:
        return check(Path(job_file), sets)

    def render(self, job_file: str, sets: Sequence[str], note: Echo) -> str:
        return submit.render(load_job(job_file, sets))

    def submit(
        self, job: Job, job_file: str, options: Options, echo: Echo, *, sets: Sequence[str]
    ) -> KnownRun | None:
        job = with_site(job)
        applied = submit.submit(job, options, echo)
        known = _known(job, job_file, applied)
        echo(submit.what_next(applied, by_name(options.command, known, is_new=True)))
        echo(first_word(job, Kubectl.of(job.section(Kubernetes))))
        return known

    def found(self, job: Job, job_file: str, echo: Echo) -> KnownRun | None:
        job = with_site(job)
        if job.image is None or shutil.which("kubectl") is None:
            return None  # it never ran there, or nothing can be asked
        try:
            applied = submit.applied(job)
        except ClusterError as error:
            echo(f"note: Kubernetes was not asked: {str(error).splitlines()[0]}")
            return None
        return None if applied is None else _known(job, job_file, applied)

    def follow(self, target: Target, echo: Echo) -> int:
        return status.follow_to_its_end(_job(target), echo)

    def status(self, target: Target) -> StoredStatus:
        return status.status_of(_job(target))

    def statuses(self, runs: Sequence[RunFiles]) -> list[Status]:
        return [status_by_files(files) for files in runs]

    def logs(self, target: Target, selection: LogSelection, *, follow: bool) -> Iterator[str]:
        return logs.log_lines(_job(target), selection, follow=follow)

    def stop(self, target: Target, echo: Echo, *, wait: bool) -> None:
        stop.stop(_job(target), echo, wait=wait)

    def runs(self, known: Sequence[KnownRun]) -> tuple[list[RunRow], list[str]]:
        return status.known_rows(known)

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

    def run_in_cluster(self, target: Target, command: str, *options: str) -> Iterator[str]:
        return storage.lines_of(_job(target), command, options)

    def download(self, target: Target, command: str, *options: str, to: BinaryIO) -> None:
        storage.download(_job(target), command, options, to)


def _known(job: Job, job_file: str, applied: submit.Applied) -> KnownRun:
    known = KnownRun.of(job, job_file, LAUNCHER.name, applied.where, f"RayJob {applied.name}")
    return replace(known, storage_there=applied.storage)


def _job(target: Target) -> Job:
    """The job as it was submitted. It has the cluster, the namespace and the run's name."""
    job = target.submitted_job
    if job is None:
        raise JobError(
            f"{target.text} is not a job file, and only a job file names the cluster.\nName the job file."
        )
    return with_site(job)


LAUNCHER = KubernetesLauncher()
