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
from clustertrain.launchers.kubernetes.observed.pod_problems import Object, has_started, problems
from clustertrain.launchers.kubernetes.render.pods import reader_pod
from clustertrain.waiting import wait_until

_START_LIMIT_S = 90.0
_BLOCKED_AFTER_S = 15.0  # a volume or a node may take some seconds: earlier problems are ignored
_POLL_S = 0.7


@contextmanager
def waiting_pod(job: Job, limit_s: int) -> Iterator[str]:
    """The name of a pod that runs until the block ends, or for `limit_s` seconds.

    Raises:
        ClusterError: it was not created, or did not start in time. The message has the reason.
    """
    kubectl, name = Kubectl.of(job), f"{job.name[:40]}-read-{secrets.token_hex(3)}"
    kubectl("create", "--filename=-", input=json.dumps(reader_pod(job, name, limit_s)))
    try:
        _wait_for_start(kubectl, name)
        yield name
    finally:
        kubectl("delete", "pod", name, "--ignore-not-found", "--wait=false", "--grace-period=1")


def _wait_for_start(kubectl: Kubectl, name: str) -> None:
    started = time.monotonic()

    def is_up() -> bool:
        pod = kubectl.get("pod", name)
        if has_started(pod):
            return True
        if time.monotonic() - started > _BLOCKED_AFTER_S and (blocking := _why_not(kubectl, pod)):
            raise ClusterError(f"the reader pod does not start: {blocking}")
        return False

    if not wait_until(is_up, _START_LIMIT_S, _POLL_S):
        raise ClusterError(f"the reader pod did not start within {_START_LIMIT_S:.0f} s")


def _why_not(kubectl: Kubectl, pod: Object) -> str:
    """The problems that keep the pod from starting. Events count only if the account may list them."""
    events: list[Object] = []
    with suppress(ClusterError):
        events += kubectl.list("events")
    return "; ".join(problem.text for problem in problems([pod], events, {}) if problem.blocks)
