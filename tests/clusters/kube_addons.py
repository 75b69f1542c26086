"""What runs in the pods of a cluster of ours: CoreDNS, the KubeRay operator, Kueue.

Operator and Kueue are what their projects would install, from the manifests of their Go modules; ours are the
images, and a request for CPU that leaves some of a small machine to the jobs.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from clusters.kube_client import TOOLS, Kubernetes
from clusters.kube_conf import DNS

OPERATOR_NAMESPACE = "default"
KUEUE_NAMESPACE = "kueue-system"
_OPERATOR, _KUEUE = "kuberay-operator", "kueue-controller-manager"
_KUEUE_SECRET = "kueue-webhook-server-cert"
_COREFILE = """\
cluster.local:53 in-addr.arpa:53 {
  errors
  kubernetes
}
.:53 {
  template ANY ANY {
    rcode NXDOMAIN
  }
}
"""
_DNS_RULES = [
    {
        "apiGroups": [""],
        "resources": ["endpoints", "services", "pods", "namespaces"],
        "verbs": ["list", "watch"],
    },
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
]
_WITHOUT_API = {
    "target": {"kind": "APIService"},
    "patch": json.dumps(
        {"apiVersion": "any/v1", "kind": "APIService", "metadata": {"name": "any"}, "$patch": "delete"}
    ),
}
_SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}


class Addons(Kubernetes):
    """`folder`: the cluster's; `load_program`: how an image comes into it."""

    folder: Path

    def load_program(self, image: str, program: Path, *command: str) -> None:
        raise NotImplementedError

    # Names

    def start_dns(self) -> None:
        """As a pod with the labels that network policies go by."""
        meta = {"name": "coredns", "namespace": "kube-system"}
        labels = {"k8s-app": "kube-dns"}
        rbac = "rbac.authorization.k8s.io"
        container = {
            "name": "coredns",
            "image": "localhost/coredns:test",
            "args": ["-conf", "/etc/coredns/Corefile"],
            "securityContext": {"runAsUser": 0},  # for port 53
            "resources": _SMALL,
            "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
        }
        spec = {
            "serviceAccountName": "coredns",
            "dnsPolicy": "Default",
            "containers": [container],
            "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
        }
        ports = [{"name": proto.lower(), "port": 53, "protocol": proto} for proto in ("UDP", "TCP")]
        self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "coredns"},
                "rules": _DNS_RULES,
            },
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "coredns"},
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "coredns"},
                "subjects": [{"kind": "ServiceAccount", **meta}],
            },
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"Corefile": _COREFILE}},
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": meta,
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "kube-dns", "namespace": "kube-system"},
                "spec": {"clusterIP": DNS, "selector": labels, "ports": ports},
            },
        )

    # KubeRay

    def start_operator(self) -> None:
        """Until it answers. The first time, it is installed: CRDs, roles, deployment."""
        if not self.get("deployment", _OPERATOR, OPERATOR_NAMESPACE):
            self.load_program("localhost/kuberay:test", TOOLS / "bin" / "ray-operator", "/manager")
            arguments = ["--enable-leader-election=false"]  # the next one need not wait for a lease
            # Not through kustomize, which takes seconds for their megabytes.
            self.kubectl("create", "--validate=false", f"--filename={TOOLS / 'kuberay' / 'crd' / 'bases'}")
            parts = {"namespace": OPERATOR_NAMESPACE, "resources": ["rbac", "manager"]}
            self._install("kuberay", _OPERATOR, "localhost/kuberay:test", arguments, parts)
        self._scale(_OPERATOR, OPERATOR_NAMESPACE, 1)

    def stop_operator(self) -> None:
        """At once, as a crash would; until it is gone."""
        self._scale(_OPERATOR, OPERATOR_NAMESPACE, 0)

    # Kueue

    def start_kueue(self) -> None:
        """Until its webhooks answer."""
        if not self.get("deployment", _KUEUE, KUEUE_NAMESPACE):
            self.load_program("localhost/kueue:test", TOOLS / "bin" / "kueue", "/manager")
            # Without its own API, the positions in a queue: while that is away, no namespace can be deleted.
            arguments = ["--feature-gates=VisibilityOnDemand=false"]
            parts = {"resources": ["default"], "patches": [_WITHOUT_API]}
            self._install("kueue", _KUEUE, "localhost/kueue:test", arguments, parts)
            # It makes its certificate and would see it minutes later; another pod begins with it.
            made = ("secret", _KUEUE_SECRET, KUEUE_NAMESPACE)
            self.wait_for(lambda: "tls.crt" in self.get(*made).get("data", {}), 90, "it has no certificate")
            self.kubectl("delete", "pods", "--all", "--grace-period=1", namespace=KUEUE_NAMESPACE)
        self._scale(_KUEUE, KUEUE_NAMESPACE, 1)
        flavor = {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "ResourceFlavor",
            "metadata": {"name": "try"},
        }
        trying = ("create", "--dry-run=server", "--filename=-")
        self.wait_for(
            lambda: self.kubectl(*trying, input=json.dumps(flavor), check=False).returncode == 0,
            60,
            "Kueue's webhooks do not answer",
        )

    def stop_kueue(self) -> None:
        """With its webhooks, which would refuse all jobs, and with the queues that nobody would let go."""
        if not self.get("deployment", _KUEUE, KUEUE_NAMESPACE):
            return
        for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
            self.kubectl("delete", kind, "--selector=app.kubernetes.io/name=kueue")
        self.kubectl("delete", "deployment", _KUEUE, "--cascade=foreground", namespace=KUEUE_NAMESPACE)
        for kind in ("workloads", "localqueues", "clusterqueues", "resourceflavors"):
            found = self.kubectl("get", f"{kind}.kueue.x-k8s.io", "--all-namespaces", "--output=json")
            for each in json.loads(found.stdout)["items"]:
                meta = each["metadata"]
                self.patch(
                    kind,
                    meta["name"],
                    {"metadata": {"finalizers": None}},
                    namespace=meta.get("namespace", ""),
                )
                gone = ("delete", kind, meta["name"], "--ignore-not-found")
                self.kubectl(*gone, namespace=meta.get("namespace", ""))

    # Both

    def _install(
        self, module: str, deployment: str, image: str, arguments: Sequence[str], parts: Mapping
    ) -> None:
        """`parts`: of a kustomization; its resources are folders of the module's manifests."""
        folder = self.folder / module
        folder.mkdir(exist_ok=True)
        container = "/spec/template/spec/containers/0"
        changes = [
            {"op": "replace", "path": f"{container}/image", "value": image},
            {"op": "replace", "path": f"{container}/imagePullPolicy", "value": "Never"},
            {"op": "replace", "path": f"{container}/resources", "value": _SMALL},
            {"op": "replace", "path": f"{container}/readinessProbe/initialDelaySeconds", "value": 1},
            {"op": "replace", "path": f"{container}/readinessProbe/periodSeconds", "value": 1},
            {"op": "remove", "path": f"{container}/livenessProbe"},  # slow is not dead
            *({"op": "add", "path": f"{container}/args/-", "value": each} for each in arguments),
        ]
        change = {"target": {"kind": "Deployment", "name": deployment}, "patch": json.dumps(changes)}
        kustomization = {
            **parts,
            "resources": [os.path.relpath(TOOLS / module / each, folder) for each in parts["resources"]],
            "patches": [change, *parts.get("patches", [])],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        self.apply(self.kubectl("kustomize", str(folder)).stdout)

    def _scale(self, deployment: str, namespace: str, replicas: int) -> None:
        self.kubectl("scale", "deployment", deployment, f"--replicas={replicas}", namespace=namespace)
        if replicas:
            ready = ("rollout", "status", f"deployment/{deployment}", "--timeout=200s")
            self.kubectl(*ready, namespace=namespace, timeout_s=210)
            return
        labels = self.get("deployment", deployment, namespace)["spec"]["selector"]["matchLabels"]
        pods = ",".join(f"{key}={value}" for key, value in labels.items())
        self.kubectl(
            "delete", "pods", f"--selector={pods}", "--grace-period=0", "--force", namespace=namespace
        )
        self.wait_for(lambda: not self.items("pods", namespace, pods), 60, f"{deployment} does not end")
