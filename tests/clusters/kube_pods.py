"""Pods of the tests themselves: a shell that looks at a cluster from within, as `restricted` wants it."""

from collections.abc import Mapping

from clusters.kube_api import manifest

SHELL_IMAGE = "localhost/busybox:test"
UID = 1000


def shell_pod(name: str, script: str, labels: Mapping[str, str] | None = None, **spec: object) -> dict:
    """Runs once. The commands are busybox's: `busybox nc`, `busybox wget`."""
    container = {
        "name": "shell",
        "image": SHELL_IMAGE,
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
