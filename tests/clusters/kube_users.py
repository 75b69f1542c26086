"""The cluster that CLUSTERTRAIN_KUBECONFIG names: kind, minikube or a real one, with a KubeRay operator.

Nothing there is ours but the namespaces that the tests make. A test that needs more is skipped.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from clusters.kube import KubeCluster
from clusters.kube_api import Api
from clusters.kube_client import USERS_CLUSTER, Kubernetes


class UsersCluster(Kubernetes):
    """With `kubectl` of this machine, and with images that its nodes have or can pull."""

    def __init__(self) -> None:
        self.kubeconfig = Path(os.environ[USERS_CLUSTER])
        self._folder = tempfile.TemporaryDirectory(prefix="kubeconfigs-")
        # It knows every way in which a kubeconfig may prove who somebody is.
        self._proxy = subprocess.Popen(
            ["kubectl", "proxy", "--port=0"], env=self.environment, stdout=subprocess.PIPE, text=True
        )
        served = re.search(r"127\.0\.0\.1:\d+", self._proxy.stdout.readline())
        self.api = Api(f"http://{served[0]}")

    def _private_folder(self) -> Path:
        return Path(self._folder.name)

    def start_operator(self) -> None:
        if not self.get("customresourcedefinitions", "rayjobs.ray.io"):
            pytest.skip(f"{USERS_CLUSTER}: there is no KubeRay operator")

    def load(self, image: str, name: str = "") -> None:
        """Whoever names a cluster has brought the image there: docs/guides/kubernetes.md."""

    def heal(self) -> None:
        """Nothing was broken."""

    def close(self) -> None:
        self.api.close()
        self._proxy.kill()
        self._proxy.communicate()
        self._folder.cleanup()

    def __getattr__(self, name: str) -> object:
        if hasattr(KubeCluster, name) or name in KubeCluster.__annotations__:
            pytest.skip(f"{USERS_CLUSTER}: {name} is for a cluster of the tests' own")
        raise AttributeError(name)
