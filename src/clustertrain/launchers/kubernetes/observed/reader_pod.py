"""A short-lived pod that reads the storage of a run whose own pods are gone. It is always deleted.

The job file is in the pod itself, so nothing of the run needs to stay in the cluster for it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed.pod_problems import Object, problems
from clustertrain.launchers.kubernetes.render.pods import reader_pod
from clustertrain.waiting import wait_until

_RUN_LIMIT_S = 120
_START_LIMIT_S = 90.0
_BLOCKED_AFTER_S = 15.0  # a volume or a node may take some seconds: earlier problems are ignored
_POLL_S = 0.7


def read_by_pod(job: Job, kubectl: Kubectl, arguments: list[str]) -> str:
    """The output of `clustertrain ARGUMENTS` in the pod, including its error messages.

    Raises:
        ClusterError: the pod was not created, or did not start or end in time. The message has the reason.
    """
    with _pod(job, kubectl, arguments, _RUN_LIMIT_S) as name:
        _wait_for(kubectl, name, ("Succeeded", "Failed"), _START_LIMIT_S + _RUN_LIMIT_S)
        return kubectl("logs", name).stdout


@contextmanager
def waiting_pod(job: Job, kubectl: Kubectl, limit_s: int) -> Iterator[str]:
    """The name of a reader pod that runs until the block ends, or for `limit_s` seconds. Raises as
    `read_by_pod`."""
    with _pod(job, kubectl, [], limit_s) as name:
        _wait_for(kubectl, name, ("Running", "Succeeded", "Failed"), _START_LIMIT_S)
        yield name


@contextmanager
def _pod(job: Job, kubectl: Kubectl, arguments: list[str], limit_s: int) -> Iterator[str]:
    name = f"{job.name[:40]}-read-{secrets.token_hex(3)}"
    pod = reader_pod(job, name, arguments, limit_s)
    kubectl("create", "--filename=-", input=json.dumps(pod))
    try:
        yield name
    finally:
        kubectl("delete", "pod", name, "--ignore-not-found", "--wait=false", "--grace-period=1")


def _wait_for(kubectl: Kubectl, name: str, phases: tuple[str, ...], limit_s: float) -> None:
    started = time.monotonic()

    def is_there() -> bool:
        pod = kubectl.get("pod", name)
        if pod.get("status", {}).get("phase") in phases:
            return True
        if time.monotonic() - started > _BLOCKED_AFTER_S and (blocking := _why_not(kubectl, pod)):
            raise ClusterError(f"the reader pod does not start: {blocking}")
        return False

    if not wait_until(is_there, limit_s, _POLL_S):
        raise ClusterError(f"the reader pod was not {' or '.join(phases)} within {limit_s:.0f} s")


def _why_not(kubectl: Kubectl, pod: Object) -> str:
    """The problems that keep the pod from starting. Events count only if the account may list them."""
    events: list[Object] = []
    with suppress(ClusterError):
        events += kubectl.list("events")
    return "; ".join(problem.text for problem in problems([pod], events, {}) if problem.blocks)
