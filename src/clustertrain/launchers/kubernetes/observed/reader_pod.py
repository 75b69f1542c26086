"""A short-lived pod that reads the storage of a run whose own pods are gone. It is always deleted.

The job file is in the pod itself, so nothing of the run needs to stay in the cluster for it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from clustertrain.errors import EXIT_FAILED, ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed.pod_problems import Object, containers_of, problems
from clustertrain.launchers.kubernetes.render.fields import at
from clustertrain.launchers.kubernetes.render.pods import reader_pod
from clustertrain.waiting import wait_until

_RUN_LIMIT_S = 120
_START_LIMIT_S = 90.0
_BLOCKED_AFTER_S = 15.0  # a volume or a node may take some seconds: earlier problems are ignored
_POLL_S = 0.7


def run_by_pod(job: Job, kubectl: Kubectl, arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code of `clustertrain ARGUMENTS` in the pod, and its output, including its error messages.

    Raises:
        ClusterError: the pod was not created, or did not start or end in time. The message has the reason.
    """
    with _pod(job, kubectl, [*arguments], _RUN_LIMIT_S) as name:
        pod = _wait_for(kubectl, name, ("Succeeded", "Failed"), _START_LIMIT_S + _RUN_LIMIT_S)
        ended = [at(each, "state", "terminated", "exitCode") for each in containers_of(pod)]
        code = 0 if pod["status"]["phase"] == "Succeeded" else next(filter(None, ended), EXIT_FAILED)
        return code, kubectl("logs", name).stdout


@contextmanager
def waiting_pod(job: Job, kubectl: Kubectl, limit_s: int) -> Iterator[str]:
    """The name of a reader pod that runs until the block ends, or for `limit_s` seconds. Raises as
    `run_by_pod`."""
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


def _wait_for(kubectl: Kubectl, name: str, phases: tuple[str, ...], limit_s: float) -> Object:
    started = time.monotonic()

    def found() -> Object | None:
        pod = kubectl.get("pod", name)
        if pod.get("status", {}).get("phase") in phases:
            return pod
        if time.monotonic() - started > _BLOCKED_AFTER_S and (blocking := _why_not(kubectl, pod)):
            raise ClusterError(f"the reader pod does not start: {blocking}")
        return None

    if (pod := wait_until(found, limit_s, _POLL_S)) is None:
        raise ClusterError(f"the reader pod was not {' or '.join(phases)} within {limit_s:.0f} s")
    return pod


def _why_not(kubectl: Kubectl, pod: Object) -> str:
    """The problems that keep the pod from starting. Events count only if the account may list them."""
    events: list[Object] = []
    with suppress(ClusterError):
        events += kubectl.list("events")
    return "; ".join(problem.text for problem in problems([pod], events, {}) if problem.blocks)
