"""Objects that nobody refuses: what wrong ones of the tests begin as. They are as the kit renders them."""

from typing import Any

import yaml

from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.render.manifests import manifests
from launchers.kubernetes.manifest_changes import ABSENT, CLUSTER, Change, Manifest, changed

_JOB = {"name": "right", "function": "m:f", "image": "registry.example.com/team/train:1.4"}
_SECTION = {
    "code_in_image": "/app",
    "volumes": [{"mount": "/mnt/runs", "claim": "runs", "size": "100Gi"}],
}


def rendered(resources: dict[str, int] | None = None, **section: Any) -> list[Manifest]:
    """All objects of a run, the RayJob last."""
    job = {**_JOB, "resources": {"workers": 2, **(resources or {})}, "kubernetes": {**_SECTION, **section}}
    return manifests(parse_job(yaml.safe_dump(job), "job.yaml"))


def rayjob(resources: dict[str, int] | None = None, **section: Any) -> Manifest:
    return rendered(resources, **section)[-1]


def _rule(policy: str, ttl_s: int, **condition: str) -> Manifest:
    return {"policy": policy, "condition": {"ttlSeconds": ttl_s, **condition}}


RULES: Change = {
    "spec/shutdownAfterJobFinishes": ABSENT,
    "spec/ttlSecondsAfterFinished": ABSENT,
    "spec/deletionStrategy": {
        "deletionRules": [
            _rule("DeleteWorkers", 60, jobStatus="SUCCEEDED"),
            _rule("DeleteCluster", 600, jobStatus="SUCCEEDED"),
            _rule("DeleteCluster", 60, jobDeploymentStatus="Failed"),
        ]
    },
}
AUTOSCALER: Change = {
    f"{CLUSTER}/enableInTreeAutoscaling": True,
    f"{CLUSTER}/autoscalerOptions": {
        "version": "v2",
        "idleTimeoutSeconds": 60,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    },
}
KUEUE = {"kind": "kueue", "name": "team", "priority_class": "high"}
_TOLERATIONS = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
_MORE = rayjob()["spec"]["rayClusterSpec"]["workerGroupSpecs"][0] | {"groupName": "more"}

RAYJOBS: dict[str, Manifest] = {
    "a job": rayjob(),
    "gpus": rayjob(
        {"nodes": 1, "gpus_per_worker": 1}, tolerations=_TOLERATIONS, node_selector={"example.com/gpu": "a"}
    ),
    "two groups": changed(rayjob(), {f"{CLUSTER}/workerGroupSpecs/+": _MORE}),
    "deletion rules": changed(rayjob(), RULES),
    "an autoscaler": changed(rayjob(), AUTOSCALER),
    "kueue with topology": rayjob(queue=KUEUE, topology={"required": "cloud.example.com/rack"}),
    "volcano": rayjob(queue={**KUEUE, "kind": "volcano"}),
}
RIGHT: dict[str, Manifest] = {**RAYJOBS, **{each["kind"]: each for each in rendered()[:-1]}}
