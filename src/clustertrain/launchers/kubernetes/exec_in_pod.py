"""`exec`: runs a command in the pod of a rank."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed.pod_problems import (
    Object,
    is_running,
    name_of,
    node_of,
    role_of,
)
from clustertrain.launchers.kubernetes.observed.run_storage import RunStorage
from clustertrain.launchers.kubernetes.observed.view import observe_run
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE
from clustertrain.launchers.kubernetes.render.pods import WORKER_CONTAINER
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.scheduler.on_rank import RankPlace

_LONGEST_HOSTNAME = 63


def exec_in_pod(job: Job, rank: int, command: Sequence[str]) -> int:
    """Run a command in the container of a rank, with this terminal. Returns its exit code.

    Raises:
        JobError: the run is not running, or has no such rank.
        ClusterError: the pod of the rank does not run, or the cluster refused a request.
    """
    kubectl = Kubectl.of(job.section(Kubernetes))
    observed = observe_run(job, kubectl, [])
    if observed.head is None:
        raise JobError(
            f"{job.name} is not running: the head's pod of its RayJob does not run.\nStart it again."
        )
    printed = RunStorage(job, kubectl, observed.head).lines("logs", "--json", JOB_FILE)
    events = (json.loads(line) for line in printed if '"group_started"' in line)
    started = [event for event in events if event.get("kind") == "group_started"]
    place = RankPlace.of(started[-1] if started else None, rank, job.name)
    pod = next((pod for pod in observed.pods if is_running(pod) and _has(pod, place)), None)
    if pod is None:
        raise ClusterError(f"No pod of {job.name} that runs has the host {place.host}.\nTry again.")
    terminal = ["--stdin", *(["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else [])]
    where = name_of(pod), f"--container={WORKER_CONTAINER}"
    return kubectl.attached("exec", *terminal, *where, "--", *place.argv(command))


def _has(pod: Object, place: RankPlace) -> bool:
    """Whether a rank is in this pod: its host is the pod, or with host_network the node."""
    hosts = (name_of(pod)[:_LONGEST_HOSTNAME], node_of(pod))
    return role_of(pod) == "worker" and place.host in hosts
