"""The way to a run's storage in the cluster: its head's pod, else a short-lived reader pod."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.file import load_job
from clustertrain.job.site import SiteJob, read_site, site_path, with_site
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed.pods import (
    has_started,
    is_running,
    name_of,
    node_of,
    role_of,
)
from clustertrain.launchers.kubernetes.observed.run_storage import RunStorage
from clustertrain.launchers.kubernetes.observed.state import Observed, standing_of
from clustertrain.launchers.kubernetes.observed.view import RAYJOBS, observe_run, read_view, status_of
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE, PodJob
from clustertrain.launchers.kubernetes.render.pods import WORKER_CONTAINER
from clustertrain.launchers.kubernetes.scheduler import OUR_LABEL, SCHEDULER, place_of
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.scheduler.interface import Sent
from clustertrain.launchers.target import NotThere, Target
from clustertrain.node.units import time_text
from clustertrain.observe.run_table import RunRow
from clustertrain.observe.status_json import StoredStatus

_WRITE_FILES = (["data", "fetch"], ["data", "evict"])
_GROUPS = ("ckpt", "data")
_LONGEST_HOSTNAME = 63


class KubernetesReach:
    """Implements `Reach` (launchers/target.py)."""

    def sent(self, target: Target) -> Sent:
        job = _job_of(target)
        return Sent(job.name, place=place_of(Kubectl.of(job)))

    def storage_of(self, job: SiteJob) -> str:
        return PodJob.of(job).job.storage.uri

    def rows(self, job_file: str | None, namespace: str | None) -> Sequence[RunRow]:
        kubectl, rows = _kubectl_for(job_file, namespace), []
        for rayjob in sorted(kubectl.list(RAYJOBS, OUR_LABEL), key=name_of):
            observed = Observed(rayjob)
            age = time_text(time.time() - observed.created_at)
            cluster = rayjob.get("status", {}).get("rayClusterStatus", {})
            ready, desired = cluster.get("readyWorkerReplicas", 0), cluster.get("desiredWorkerReplicas", 0)
            text = f"{observed.summary}, {ready}/{desired} workers' pods, age {age}"
            there = replace(kubectl, namespace=rayjob["metadata"]["namespace"])
            where = " ".join([SCHEDULER.label, *(f"{key} {value}" for key, value in place_of(there).items())])
            state = "running" if observed.native.phase == "runs" else standing_of(observed, None).state
            rows.append(RunRow(name_of(rayjob), state, where=where, text=text))
        return rows

    def status(self, target: Target, *, existed: bool = False) -> StoredStatus:
        return status_of(read_view(_job_of(target), existed=existed))

    def lines(self, target: Target, command: Sequence[str]) -> Iterator[str]:
        job = _job_of(target)
        if [*command[:2]] in _WRITE_FILES:
            where = PodJob.of(job).job.storage
            raise JobError(
                f"`{' '.join(command[:2])}` writes files, and the storage of {job.name} is in the cluster: "
                f"{where.uri}.\nRun it on a machine or in a pod that can write to that storage."
            )
        observed, is_followed = observe_run(job, []), "--follow" in command
        if command[0] == "stop" and observed.head is None:
            why = "there is nothing to save yet, but workers that run save before their pods end"
            raise NotThere(f"its head's pod does not run: {why}")
        words = [word for word in command if observed.head is not None or word != "--follow"]
        storage, has_printed = RunStorage(job, observed.head), False
        try:
            for line in storage.lines(*_arguments(words)):
                has_printed = True
                yield line
        except NotThere:
            if has_printed or is_followed or command[0] == "stop" or storage.head is None:
                raise
            # The run has just ended: a reader pod has the same storage.
            yield from replace(storage, head=None).lines(*_arguments(words))
        if is_followed and observed.head is None:
            raise NotThere("the head's pod does not run, and the attempt has not ended")

    def download(self, target: Target, command: Sequence[str], to: BinaryIO) -> None:
        job = _job_of(target)
        RunStorage(job, observe_run(job, []).head).run(*_arguments(command), to=to)

    def first_lines(self, target: Target) -> Sequence[str]:
        """Return the output of the submitter's pod, if it has started."""
        job = _job_of(target)
        started = [
            pod for pod in observe_run(job, []).pods if role_of(pod) == "submitter" and has_started(pod)
        ]
        kubectl = Kubectl.of(job)
        return [line for pod in started for line in kubectl("logs", name_of(pod)).stdout.splitlines()]

    def command_on(self, target: Target, host: str, command: Sequence[str]) -> Sequence[str]:
        job = _job_of(target)
        workers = (pod for pod in observe_run(job, []).pods if is_running(pod) and role_of(pod) == "worker")
        # With host_network the host of a rank is its node.
        hosts = {name: pod for pod in workers for name in (name_of(pod)[:_LONGEST_HOSTNAME], node_of(pod))}
        if (pod := hosts.get(host)) is None:
            raise ClusterError(f"No pod of {job.name} that runs has the host {host}.\nTry again.")
        terminal = ["--stdin", *(["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else [])]
        where = name_of(pod), f"--container={WORKER_CONTAINER}"
        return Kubectl.of(job).argv("exec", *terminal, *where, "--", *command)


REACH = KubernetesReach()


def _kubectl_for(job_file: str | None, namespace: str | None) -> Kubectl:
    """Return kubectl for the cluster and namespace of a job file; without one, of the site file."""
    if job_file is not None:
        section = with_site(load_job(Path(job_file))).section(Kubernetes)
    else:
        site = site_path()
        section = Kubernetes() if site is None else read_site(site, os.environ).section(Kubernetes)
    return Kubectl(namespace or section.namespace, section.context)


def _job_of(target: Target) -> SiteJob:
    """Return the job of a target, in the place where it was submitted: kubectl may point elsewhere by now."""
    job = target.submitted_job
    place = target.known.place if target.known is not None else {}
    section = job.section(Kubernetes).model_copy(update=place)
    return SiteJob(job.model_copy(update={"kubernetes": section}))


def _arguments(command: Sequence[str]) -> list[str]:
    """Return the arguments of a command on the job file of the pod."""
    words = 2 if command[0] in _GROUPS else 1
    return [*command[:words], JOB_FILE, *command[words:]]
