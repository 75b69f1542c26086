"""How long a RayJob takes from `kubectl apply` to its first optimizer step: clustertrain against a plain
RayJob whose entrypoint is a stock TorchTrainer.

    make kube-tools; python benchmarks/kube_start.py [--rounds 5] [--workers 2] [--json FILE]

Both run alternately on a Kubernetes of processes on this machine with the real operator
(tests/clusters/kube.py; root), with the same image, already on the node, one CPU for each pod, and the same
function (slurm_peers/first_step.py). The time is from the start of `kubectl apply` to the end of rank 0's
first optimizer step. Before each start the pods of the previous one are gone.

The plain RayJob gets clustertrain's readiness probes, because KubeRay's need wget; it has no policies, no
token and no read-only root. clustertrain does more in this time: it unpacks the code, checks the storage from
every pod, claims the attempt and requires a token on every port.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from comparison.figures import PLAIN_RAYJOB as PLAIN
from comparison.figures import START as OURS
from comparison.turns import by_turns, parser_of, show, write

from clustertrain.node.version import RAY_VERSION

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "tests"))

from clusters.containers import kit_image  # noqa: E402  it is found by the line above
from clusters.containers import why_not as why_no_image  # noqa: E402
from clusters.kube import KubeCluster, why_not  # noqa: E402

PEERS = CHECKOUT / "benchmarks" / "slurm_peers"
_CLAIM, _MOUNT = "clustertrain", "/mnt/clustertrain"
_PATIENCE_S = 400.0
_HEALTHY = {"httpGet": {"path": "/api/healthz", "port": 52365}, "periodSeconds": 1, "timeoutSeconds": 5}
_PROBES = {"startupProbe": {**_HEALTHY, "failureThreshold": 900}, "readinessProbe": _HEALTHY}

Render = Callable[[str, str, int, Path], str]
"""The manifests as YAML; given the namespace, the image, the workers, and where to note the step."""


def render_ours(namespace: str, image: str, workers: int, note: Path) -> str:
    """As a user would get it."""
    job = {
        "name": "start",
        "code": str(PEERS),
        "function": "first_step:train",
        "args": {"note": str(note)},
        "image": image,
        "storage": "runs",
        "resources": {"workers": workers, "cpus_per_worker": 1},
        "kubernetes": {"namespace": namespace, "pull_policy": "Never", "head": {"cpus": 1, "memory": "4Gi"}},
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "start.yaml").write_text(yaml.safe_dump(job))
        command = [sys.executable, "-m", "clustertrain.cli", "render", "--to", "kubernetes", "start.yaml"]
        environment = {**os.environ, "CLUSTERTRAIN_SITE": ""}
        return subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout


def render_plain(namespace: str, image: str, workers: int, note: Path) -> str:
    """As KubeRay's samples have it, with a volume and the program from a ConfigMap."""

    def template(name: str) -> dict[str, object]:
        container = {
            "name": name,
            "image": image,
            "imagePullPolicy": "Never",
            "resources": {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"cpu": "1", "memory": "4Gi"}},
            "volumeMounts": [{"name": "code", "mountPath": "/code"}, {"name": "runs", "mountPath": _MOUNT}],
            **_PROBES,
        }
        volumes = [
            {"name": "code", "configMap": {"name": "code"}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": _CLAIM}},
        ]
        return {"spec": {"containers": [container], "volumes": volumes}}

    program = (PEERS / "first_step.py").read_text()
    group = {"groupName": "workers", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    submitter = {"name": "submitter", "image": image, "imagePullPolicy": "Never"}
    spec = {
        "entrypoint": f"python /code/first_step.py {note} {workers} {_MOUNT}/ray",
        "shutdownAfterJobFinishes": True,
        "submitterPodTemplate": {"spec": {"restartPolicy": "Never", "containers": [submitter]}},
        "rayClusterSpec": {
            "rayVersion": RAY_VERSION,
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": template("ray-head")},
            "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": template("ray-worker")}],
        },
    }
    made = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "code"},
            "data": {"first_step.py": program},
        },
        {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "start"}, "spec": spec},
    ]
    for each in made:
        each["metadata"]["namespace"] = namespace
    return yaml.safe_dump_all(made)


SIDES: dict[str, tuple[Render, str]] = {
    OURS: (render_ours, "restricted"),
    PLAIN: (render_plain, "privileged"),
}
"""Each with the Pod Security that its namespace enforces."""


def measure(cluster: KubeCluster, side: str, image: str, workers: int) -> float:
    """Seconds from `kubectl apply` to the first optimizer step, of one start."""
    render, security = SIDES[side]
    namespace = cluster.make_namespace("start", security)
    volume = cluster.make_volume(namespace, _CLAIM)
    text = render(namespace, image, workers, Path(_MOUNT) / "stepped")
    started = time.time()
    cluster.apply(text)
    stepped = volume / "stepped"
    while not stepped.exists():
        status = cluster.get("rayjobs", "start", namespace).get("status", {})
        if time.time() - started > _PATIENCE_S or status.get("jobDeploymentStatus") in ("Complete", "Failed"):
            raise SystemExit(f"{side} made no step: {json.dumps(status)}\n{cluster.story()}")
        time.sleep(1)
    step_s = float(stepped.read_text()) - started
    cluster.delete_namespace(namespace)
    cluster.wait_until_gone("namespaces", "", 120, name=namespace)
    return step_s


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if reason := why_not() or why_no_image():
        parser.error(reason)
    image = kit_image()
    with KubeCluster() as cluster:
        cluster.start_operator()
        cluster.load(image)
        found = by_turns(
            SIDES, options.rounds, lambda _, side: measure(cluster, side, image, options.workers)
        )
    write(options.json, found)
    show("to the first step", found, OURS)


if __name__ == "__main__":
    main()
