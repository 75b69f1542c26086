"""A head's pod without the kit: its `python` prints what a test has written, so a run takes no image and no
training. API server, kubelet and `kubectl exec` are the real ones.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path

from clusters.kube_client import Kubernetes
from clusters.kube_pods import shell_pod
from clustertrain.observe.status_json import StoredStatus

_PYTHON = """\
#!/bin/busybox sh
case "$*" in
  *"status --json"*)
    busybox cat /state/status
    busybox touch "/state/shown-$(busybox cat /state/version)" ;;
  *" logs "*)
    echo "the attempt begins"
    busybox touch /state/followed
    until [ -e /state/ended ]; do busybox sleep 0.1; done
    echo "the attempt ends" ;;
  *) echo "$*" ;;
esac
"""


class FakeHead:
    """The head of a run whose RayJob the operator leaves alone. `folder`: that of the claim `runs`."""

    def __init__(self, kube: Kubernetes, namespace: str, run: str, folder: Path) -> None:
        self.kube, self.namespace, self.run, self.folder = kube, namespace, run, folder
        self._version = 0

    def start(self) -> None:
        cluster = f"{self.run}-abc"
        (self.folder / "python").write_text(_PYTHON)
        (self.folder / "python").chmod(0o755)
        labels = {"clustertrain.io/run": self.run, "clustertrain.io/role": "head", "ray.io/cluster": cluster}
        volume = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
        pod = shell_pod(f"{cluster}-head", "busybox sleep 600", labels, volumes=[volume])
        pod["spec"]["containers"][0] |= {
            "name": "ray-head",
            "env": [{"name": "PATH", "value": "/state:/bin"}],
            "volumeMounts": [{"name": "runs", "mountPath": "/state"}],
        }
        self.kube.apply(pod, namespace=self.namespace)
        self.kube.wait_for_pod(self.namespace, f"{cluster}-head")
        self.native(rayClusterName=cluster, jobDeploymentStatus="Running", jobStatus="RUNNING")

    def native(self, **status: str) -> None:
        """What the operator would say of the RayJob."""
        self.kube.patch("rayjobs", self.run, {"status": status}, self.namespace, "status")

    def says(self, state: str, cause: str, **more: object) -> None:
        """The status in the storage."""
        stored = StoredStatus(1, time.time(), state, cause, rows=(("run", self.run),), **more)
        self._version += 1
        (self.folder / "version").write_text(f"{self._version}")
        (self.folder / "status.new").write_text(json.dumps(asdict(stored)))
        (self.folder / "status.new").rename(self.folder / "status")

    @property
    def is_read(self) -> bool:
        """Whether somebody has read what it said last."""
        return (self.folder / f"shown-{self._version}").exists()

    @property
    def is_followed(self) -> bool:
        return (self.folder / "followed").exists()

    def end_its_logs(self) -> None:
        (self.folder / "ended").touch()
