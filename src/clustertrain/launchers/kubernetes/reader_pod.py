"""A short-lived pod that reads the storage of a run whose own pods are gone. It is always deleted."""

from __future__ import annotations

import json
import secrets
import time

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.kubectl import Kubectl
from clustertrain.launchers.kubernetes.pod_problems import Object, name_of, problems, time_of
from clustertrain.launchers.kubernetes.render.pods import reader_pod
from clustertrain.waiting import wait_until

_RUN_LIMIT_S = 120
_START_LIMIT_S = 90.0
_BLOCKED_AFTER_S = 15.0  # a volume or a node may take some seconds: earlier problems are ignored
_POLL_S = 0.7


def read_by_pod(job: Job, kubectl: Kubectl, config_map: str, arguments: list[str]) -> str:
    """The output of `clustertrain ARGUMENTS` in the pod, including its error messages.

    Raises:
        ClusterError: the pod was not created, or did not start or end in time. The message has the reason.
    """
    name = f"{job.name[:40]}-read-{secrets.token_hex(3)}"
    pod = reader_pod(job, config_map, name, arguments, _RUN_LIMIT_S)
    kubectl("create", "--filename=-", input=json.dumps(pod))
    try:
        _wait_for_the_end(kubectl, name)
        return kubectl("logs", name).stdout
    finally:
        kubectl("delete", "pod", name, "--ignore-not-found", "--wait=false", "--grace-period=1")


def _wait_for_the_end(kubectl: Kubectl, name: str) -> None:
    started = time.monotonic()

    def has_ended() -> bool:
        pod = kubectl.get("pod", name)
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return True
        if time.monotonic() - started > _BLOCKED_AFTER_S and (blocking := _why_not(kubectl, pod)):
            raise ClusterError(f"the reader pod does not start: {blocking}")
        return False

    if not wait_until(has_ended, _START_LIMIT_S + _RUN_LIMIT_S, _POLL_S):
        raise ClusterError(f"the reader pod did not end within {_START_LIMIT_S + _RUN_LIMIT_S:.0f} s")


def _why_not(kubectl: Kubectl, pod: Object) -> str:
    """The problems that keep the pod from starting. Its events count only if the account may list them."""
    found = problems([pod], _events_of(kubectl, pod), {})
    return "; ".join(problem.text for problem in found if problem.blocks)


def _events_of(kubectl: Kubectl, pod: Object) -> list[Object]:
    try:
        events: list[Object] = [*kubectl.list("events")]
    except ClusterError:
        return []
    own = (name_of(pod), *(v["persistentVolumeClaim"]["claimName"] for v in _claims(pod)))
    return sorted((e for e in events if e["involvedObject"].get("name") in own), key=time_of)


def _claims(pod: Object) -> list[Object]:
    return [volume for volume in pod["spec"].get("volumes", ()) if "persistentVolumeClaim" in volume]
