"""Objects of a run as the kit renders them, changes of them, and the job files of the docs for GPU nodes."""

import copy
import re
from pathlib import Path
from typing import Any

import yaml

from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.render.manifests import manifests

Manifest = dict[str, Any]

# By paths such as "spec/rayClusterSpec/workerGroupSpecs/0/replicas". ABSENT takes a key out.
Change = dict[str, Any]
ABSENT = object()

CLUSTER = "spec/rayClusterSpec"
HEAD, WORKERS = f"{CLUSTER}/headGroupSpec", f"{CLUSTER}/workerGroupSpecs/0"

_DOCS = Path(__file__).parents[3] / "docs" / "guides"
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


def changed(manifest: Manifest, change: Change) -> Manifest:
    """A copy with the change made; mappings on the way are made where there are none."""
    made = copy.deepcopy(manifest)
    for path, value in change.items():
        *way, last = path.split("/")
        inner: Any = made
        for key in way:
            inner = inner[int(key)] if isinstance(inner, list) else inner.setdefault(key, {})
        if value is ABSENT:
            del inner[last]
        else:
            inner[last] = copy.deepcopy(value)
    return made


KUEUE = {"kind": "kueue", "name": "team", "priority_class": "high"}
_TOLERATIONS = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]

RAYJOBS: dict[str, Manifest] = {
    "a job": rayjob(),
    "gpus": rayjob(
        {"nodes": 1, "gpus_per_worker": 1}, tolerations=_TOLERATIONS, node_selector={"example.com/gpu": "a"}
    ),
    "kueue with topology": rayjob(queue=KUEUE, topology={"required": "cloud.example.com/rack"}),
    "volcano": rayjob(queue={**KUEUE, "kind": "volcano"}),
}
RIGHT: dict[str, Manifest] = {**RAYJOBS, **{each["kind"]: each for each in rendered()[:-1]}}


def gpu_node_examples() -> list[str]:
    """The job files of docs/guides/gpu-nodes.md for nodes with InfiniBand, RoCE or EFA."""
    text = (_DOCS / "gpu-nodes.md").read_text()
    section = text.partition("## Kubernetes with InfiniBand, RoCE or EFA\n")[2].partition("\n## ")[0]
    return re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
