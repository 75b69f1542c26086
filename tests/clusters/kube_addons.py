"""What runs in the pods of a cluster of ours: CoreDNS, the KubeRay operator, Kueue.

Operator and Kueue are what their projects would install, from the manifests of their Go modules; ours are the
images, and a request for CPU that leaves some of a small machine to the jobs.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import yaml

from clusters.kube_api import Refused, manifest
from clusters.kube_api import path as place
from clusters.kube_client import TOOLS, Kubernetes, all_are
from clusters.kube_conf import DNS
from clusters.kube_folders import locked

OPERATOR_NAMESPACE = "default"
KUEUE_NAMESPACE = "kueue-system"
_OPERATOR, _KUEUE = "kuberay-operator", "kueue-controller-manager"
_KUEUE_SECRET, _KUEUE_CONFIG = "kueue-webhook-server-cert", "controller_manager_config.yaml"
_QUEUED = {"clustertrain-tests/queued": "yes"}  # of a namespace whose jobs are Kueue's
_ANY_SCHEMA = """\
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-preserve-unknown-fields: true
"""
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
are_established = partial(all_are, "Established")
_SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}


class Addons(Kubernetes):
    """`load_program` of the cluster brings an image into it."""

    # Names

    def start_dns(self) -> None:
        """As a pod with the labels that network policies go by."""
        meta = {"name": "coredns", "namespace": "kube-system"}
        labels = {"k8s-app": "kube-dns"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"}
        subject = {"kind": "ServiceAccount", **meta}
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
        template = {"metadata": {"labels": labels}, "spec": spec}
        deployment = {"selector": {"matchLabels": labels}, "template": template}
        service = {"clusterIP": DNS, "selector": labels, "ports": ports}
        self.apply(
            manifest("ServiceAccount", metadata=meta),
            manifest("ClusterRole", "coredns", rules=_DNS_RULES),
            manifest("ClusterRoleBinding", "coredns", roleRef=role, subjects=[subject]),
            manifest("ConfigMap", metadata=meta, data={"Corefile": _COREFILE}),
            manifest("Deployment", metadata=meta, spec=deployment),
            manifest("Service", metadata={**meta, "name": "kube-dns"}, spec=service),
        )

    # KubeRay

    def start_operator(self) -> None:
        """Until it answers. The first time, it is installed: CRDs, roles, deployment."""
        if not self.get("deployments", _OPERATOR, OPERATOR_NAMESPACE):
            self.load_program("localhost/kuberay:test", TOOLS / "bin" / "ray-operator", "/manager")
            for text in ray_definitions(TOOLS / "kuberay" / "crd" / "bases"):
                self.api.text("POST", place("customresourcedefinitions"), text, "yaml")
            self.watch("customresourcedefinitions", "", are_established, 240, "the CRDs are not served")
            parts = {"namespace": OPERATOR_NAMESPACE, "resources": ["rbac", "manager"]}
            made = self._rendered("kuberay", parts)
            # The next one need not wait for a lease, and a run not for what becomes of the others.
            arguments = ("--enable-leader-election=false", "--reconcile-concurrency=4")
            _adapt(made, "localhost/kuberay:test", *arguments)
            self.apply(*made)
        self.patch("deployments", _OPERATOR, {"spec": {"replicas": 1}}, OPERATOR_NAMESPACE)
        self._wait_until_ready(_OPERATOR, OPERATOR_NAMESPACE)

    def stop_operator(self) -> None:
        """At once, as a crash would; until it is gone. Its namespace has no other pods."""
        self.patch("deployments", _OPERATOR, {"spec": {"replicas": 0}}, OPERATOR_NAMESPACE)
        self.delete_all("pods", OPERATOR_NAMESPACE, grace_s=0)
        self.wait_until_gone("pods", OPERATOR_NAMESPACE, 240)

    # Kueue

    def queue_jobs(self, namespace: str) -> None:
        """By Kueue, which the first who asks for it starts: until its webhooks answer."""
        self.patch("namespaces", namespace, {"metadata": {"labels": _QUEUED}})
        with locked(self.folder / "kueue-started") as started:
            if not started.read():
                self._start_kueue()
                started.write("yes")
        rayjob = manifest("RayJob", metadata={"name": "try", "namespace": namespace}, spec={})

        def webhook_answers() -> bool:
            """Its path is served later than those of Kueue's own kinds. That it refuses is an answer."""
            try:
                self.api.create(rayjob, namespace, dryRun="All")
            except Refused as refused:
                return "failed calling webhook" not in str(refused)
            return True

        self.wait_for(webhook_answers, 240, "Kueue's webhook of RayJobs does not answer")

    def _start_kueue(self) -> None:
        self.load_program("localhost/kueue:test", TOOLS / "bin" / "kueue", "/manager")
        made = self._rendered("kueue", {"resources": ["default"], "patches": [_WITHOUT_API]})
        gates = "--feature-gates=ManagedJobsNamespaceSelectorAlwaysRespected=true"
        _adapt(made, "localhost/kueue:test", gates)
        _confine(made)
        self.apply(*made)

        # It makes its certificate and would see it minutes later; another pod begins with it.
        def has_certificate(secrets: list[dict]) -> bool:
            return any("tls.crt" in each.get("data", {}) for each in secrets)

        otherwise = "Kueue has no certificate"
        self.watch("secrets", KUEUE_NAMESPACE, has_certificate, 90, otherwise, name=_KUEUE_SECRET)
        self.delete_all("pods", KUEUE_NAMESPACE, grace_s=0)
        self._wait_until_ready(_KUEUE, KUEUE_NAMESPACE)

    # Both

    def _rendered(self, module: str, parts: Mapping) -> list[dict]:
        """`parts`: of a kustomization; its resources are folders of the module's manifests."""
        folder = self.folder / module
        folder.mkdir(exist_ok=True)
        resources = [os.path.relpath(TOOLS / module / each, folder) for each in parts["resources"]]
        (folder / "kustomization.yaml").write_text(yaml.safe_dump({**parts, "resources": resources}))
        return list(yaml.load_all(self.kubectl("kustomize", str(folder)).stdout, yaml.CSafeLoader))

    def _wait_until_ready(self, deployment: str, namespace: str) -> None:
        command = ("rollout", "status", f"deployment/{deployment}", "--timeout=200s")
        self.kubectl(*command, namespace=namespace, timeout_s=240)


def ray_definitions(folder: Path) -> Iterator[str]:
    """KubeRay's CRDs, without what an API server takes many seconds to learn and no test uses: v1alpha1, the
    fields of a RayService, which the operator asks for, and RayCronJobs, for which it does not."""
    for kind in ("rayclusters", "rayjobs", "rayservices"):
        text = (folder / f"ray.io_{kind}.yaml").read_text()
        before, versions = text.split("\n  versions:\n", 1)
        first = re.split(r"^  - ", versions, maxsplit=2, flags=re.MULTILINE)[1]
        if kind == "rayservices":
            first = re.sub(r"^    schema:\n.*?(?=^    served:)", _ANY_SCHEMA, first, flags=re.M | re.S)
        yield f"{before}\n  versions:\n  - {first}"


def _adapt(made: Sequence[dict], image: str, *arguments: str) -> None:
    """The deployment among these objects: the image is one that the node has."""
    (deployment,) = (each for each in made if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container.update(image=image, imagePullPolicy="Never", resources=_SMALL)
    container["args"] = [*container["args"], *arguments]
    container["readinessProbe"].update(initialDelaySeconds=1, periodSeconds=1)
    del container["livenessProbe"]  # slow is not dead


def _confine(made: Sequence[dict]) -> None:
    """Kueue, to the namespaces that ask for it: beside them are tests of a cluster that has none."""
    for each in made:
        for webhook in each.get("webhooks", ()):
            webhook["namespaceSelector"] = {"matchLabels": _QUEUED}
        if each["kind"] == "ConfigMap":
            config = yaml.safe_load(each["data"][_KUEUE_CONFIG])
            config["leaderElection"]["leaderElect"] = False
            config["managedJobsNamespaceSelector"] = {"matchLabels": _QUEUED}
            each["data"][_KUEUE_CONFIG] = yaml.safe_dump(config)
