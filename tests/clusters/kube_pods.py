"""Pods of the tests themselves: a shell that looks at a cluster from within, as `restricted` wants it."""

import os
from collections.abc import Mapping

from clusters.kube_api import manifest
from clusters.kube_client import USERS_CLUSTER

SHELL_IMAGE = "localhost/busybox:test"  # in a cluster of ours
_PUBLIC_IMAGE = "docker.io/library/busybox:1.36"
UID = 1000


def shell_pod(name: str, script: str, labels: Mapping[str, str] | None = None, **spec: object) -> dict:
    """Runs once. The commands are busybox's: `busybox nc`, `busybox wget`."""
    container = {
        "name": "shell",
        "image": _PUBLIC_IMAGE if USERS_CLUSTER in os.environ else SHELL_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/busybox", "sh", "-c", script],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    common = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": security,
        "containers": [container],
    }
    return manifest("Pod", metadata={"name": name, "labels": dict(labels or {})}, spec={**common, **spec})
