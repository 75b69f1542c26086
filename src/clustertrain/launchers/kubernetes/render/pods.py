"""The pods of a run: templates of head, workers and submitter, and the pod that reads the storage.

All of them meet the restricted Pod Security Standard, unless the job asks for more. They have a read-only
root file system and no service account token. They can write to an emptyDir at /tmp, to one in memory at
/dev/shm, to the unpacked code, and to the volumes that the job names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from clustertrain.job.file import dump_job
from clustertrain.job.model import Job
from clustertrain.job.start_environment import hash_seed
from clustertrain.launchers.kubernetes.pod_sections import OWN_FOLDER, RunAs, Volume
from clustertrain.launchers.kubernetes.render.amounts import (
    disk_limit,
    gpus_per_pod,
    head_amounts,
    small_amounts,
    without_devices,
    worker_amounts,
    workers_per_pod,
)
from clustertrain.launchers.kubernetes.render.paths import (
    CODE,
    JOB_FILE,
    PACKED_CODE,
    WRITABLE,
    PodJob,
)
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.node import variables
from clustertrain.node.ray_settings import OBJECT_STORE_BYTES, RAY_ENVIRONMENT, WORKER_SLOT
from clustertrain.node.version import __version__

Manifest = dict[str, Any]

RUN_LABEL, ROLE_LABEL = "clustertrain.io/run", "clustertrain.io/role"
_JOB_ANNOTATION = "clustertrain.io/job"
HEAD_CONTAINER, WORKER_CONTAINER, SUBMITTER_CONTAINER = "ray-head", "ray-worker", "ray-job-submitter"
READER_CONTAINER, CODE_CONTAINER = "reader", "code"
HEALTH_PORT = 52365  # of Ray's agent
# On a node: the kubelet and kube-proxy have ports from 10248 to 10257, and Services those from 30000.
_HOST_METRICS_PORT, _HOST_HEALTH_PORT = 20000, 20001
_HOST_WORKER_PORTS = (20002, 29999)
# No log monitor, and no autoscaler monitor on the head: each takes seconds of CPU time to start.
_RAY_START_PARAMETERS = {
    "object-store-memory": str(OBJECT_STORE_BYTES),
    "disable-usage-stats": "true",
    "include-log-monitor": "0",
}
_PYTHON = "python"
_IN_POD = "clustertrain.launchers.kubernetes.in_pod"
_DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"  # `ray start` reads it before it calls the hook
_RAY_START = {
    "RAY_START_HOOK": f"{_IN_POD}.ray_start.wait_as_long_as_the_job",
    _DRAIN: RAY_ENVIRONMENT[_DRAIN],
}


def run_labels(run: PodJob, role: str | None = None) -> dict[str, str]:
    """Return the labels of every object of the run; with `role`, the labels of a pod."""
    own = {
        "app.kubernetes.io/name": "clustertrain",
        "app.kubernetes.io/managed-by": "clustertrain",
        RUN_LABEL: run.job.name,
    }
    return own if role is None else {**own, ROLE_LABEL: role}


def head_template(run: PodJob, config_map: str) -> Manifest:
    limits = {
        "RAY_JOB_STOP_WAIT_TIME_S": str(run.grace_s - 10),
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(round(run.section.start_deadline_s)),
    }
    container = {
        **_container(run, HEAD_CONTAINER),
        "env": _environment(run, _RAY_START | limits),
        "lifecycle": _pre_stop_hook("head"),
        **_probes(run),
        "resources": head_amounts(run),
    }
    template = _template(run, "head", config_map, container)
    ttl_s = math.ceil(run.section.ttl_s)
    template["spec"]["terminationGracePeriodSeconds"] = max(run.grace_s, ttl_s)
    return template


def worker_template(run: PodJob, config_map: str) -> Manifest:
    container = {
        **_container(run, WORKER_CONTAINER),
        "env": _environment(run, _RAY_START),
        "lifecycle": {**_post_start_hook(run), **_pre_stop_hook("worker")},
        **_probes(run, health_port(run)),
        "resources": worker_amounts(run),
    }
    annotations = dict(run.section.worker_annotations)
    if (topology := run.section.topology) is not None:
        kind = "required" if topology.required else "preferred"
        annotations[f"kueue.x-k8s.io/podset-{kind}-topology"] = topology.required or topology.preferred or ""
    template = _template(run, "worker", config_map, container, annotations)
    add_network(run, template["spec"])
    return template


def submitter_template(run: PodJob, entrypoint: str) -> Manifest:
    """Return the template of the pod that submits the run to Ray, and again if the head is replaced."""
    container = {
        **_container(run, SUBMITTER_CONTAINER),
        "command": [_PYTHON, "-m", f"{_IN_POD}.submitter", entrypoint],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
        "resources": small_amounts(run),
        "volumeMounts": [_TMP_MOUNT],
    }
    spec = {
        **common_fields(run),
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [_small_tmp(run)],
    }
    return {"metadata": _metadata(run, "submitter"), "spec": spec}


def reader_pod(job: Job, name: str, limit_s: int) -> Manifest:
    """Return a pod in which `kubectl exec` reads the storage of a run whose own pods are gone.

    It waits for `limit_s` seconds. The job file is an annotation of the pod, since the ConfigMap with the job
    is deleted with the RayJob.
    """
    run = PodJob.of(job)
    container = {
        **_container(run, READER_CONTAINER),
        "command": [_PYTHON, "-c", f"import time; time.sleep({limit_s})"],
        "env": _environment(run, {}),
        "resources": small_amounts(run),
        "volumeMounts": [*_mounts(run), _TMP_MOUNT, _JOB_MOUNT],
    }
    path = f"metadata.annotations['{_JOB_ANNOTATION}']"
    job_file = {"path": PurePosixPath(JOB_FILE).name, "fieldRef": {"fieldPath": path}}
    spec = {
        **common_fields(run),
        "restartPolicy": "Never",
        "activeDeadlineSeconds": limit_s,
        "containers": [container],
        "volumes": [*_volumes(run), _small_tmp(run), {"name": "job", "downwardAPI": {"items": [job_file]}}],
    }
    annotations = {_JOB_ANNOTATION: dump_job(run.job, defaults=False)}
    metadata = {"name": name, **_metadata(run, "reader", annotations)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def head_parameters() -> dict[str, str]:
    """Return the arguments of `ray start` on the head; the operator adds others.

    No worker runs there: 0 CPUs.
    """
    return {"num-cpus": "0", "no-monitor": "true", **_RAY_START_PARAMETERS}


def worker_parameters(run: PodJob) -> dict[str, str]:
    """Return the arguments of `ray start` on a worker's pod, quoted: the operator passes them to a shell.

    The operator recognizes GPUs only by some names of resources, so their number is given.
    """
    parameters = {"resources": f"'{{\"{WORKER_SLOT}\": {workers_per_pod(run)}}}'", **_RAY_START_PARAMETERS}
    if gpus := gpus_per_pod(run):
        parameters["num-gpus"] = str(gpus)
    return parameters | ports_of_ray(run)


def pods(run: PodJob) -> tuple[int, int]:
    """Return the minimum and the maximum number of worker pods."""
    resources = run.job.resources
    if resources.nodes is None:
        return resources.min_workers, resources.max_workers
    return resources.min_nodes, resources.max_nodes


# ------------------------------------------------ network of workers; the head keeps an address of its own


def health_port(run: PodJob) -> int:
    """Return the port of Ray's agent in a worker's pod."""
    return _HOST_HEALTH_PORT if run.section.host_network else HEALTH_PORT


def ports_of_ray(run: PodJob) -> dict[str, str]:
    """Return the arguments of `ray start` that set ports in a worker's pod.

    Ray and the kernel choose the ports that are not named.
    """
    if not run.section.host_network:
        return {}
    least, most = _HOST_WORKER_PORTS
    return {
        "metrics-export-port": str(_HOST_METRICS_PORT),
        "dashboard-agent-listen-port": str(_HOST_HEALTH_PORT),
        "min-worker-port": str(least),
        "max-worker-port": str(most),
    }


def add_network(run: PodJob, spec: Manifest) -> None:
    """Add to the spec of a worker's pod what the job asks for."""
    section, worker = run.section, spec["containers"][0]
    if section.worker_capabilities:
        worker["securityContext"]["capabilities"]["add"] = list(section.worker_capabilities)
    if section.host_network:
        # As ports of the container they are ports of the node, so no two such pods are placed on one node.
        ports = {"metrics": _HOST_METRICS_PORT, "agent": _HOST_HEALTH_PORT}
        worker["ports"] = [{"name": n, "containerPort": port} for n, port in ports.items()]
        # With the DNS of the node the pod would not find the head's Service.
        spec.update({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"})


# ------------------------------------------------------------------------------------------- parts of a pod


def _template(
    run: PodJob, role: str, config_map: str, container: Manifest, annotations: Mapping[str, str] = {}
) -> Manifest:
    disk = {"emptyDir": {"sizeLimit": disk_limit(run)}}
    is_packed = run.packed is not None
    mounts = [_TMP_MOUNT, _JOB_MOUNT, *([_CODE_MOUNT] if is_packed else []), *_mounts(run)]
    memory = container["resources"]["limits"]["memory"]
    spec = {
        **common_fields(run),
        "terminationGracePeriodSeconds": run.grace_s,
        "containers": [{**container, "volumeMounts": [*mounts, {"name": "shm", "mountPath": "/dev/shm"}]}],
        "volumes": [
            {"name": "tmp", **disk},
            {"name": "job", "configMap": {"name": config_map}},
            *([{"name": "code", **disk}] if is_packed else []),
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": memory}},
            *_volumes(run),
        ],
    }
    if is_packed:
        unpack = {
            **_container(run, CODE_CONTAINER),
            "command": [_PYTHON, "-m", f"{_IN_POD}.unpack_code", PACKED_CODE, CODE],
            "resources": without_devices(container["resources"]),
            "volumeMounts": [_JOB_MOUNT, _CODE_MOUNT],
        }
        spec["initContainers"] = [unpack]
    return {"metadata": _metadata(run, role, annotations), "spec": spec}


def _metadata(run: PodJob, role: str, annotations: Mapping[str, str] = {}) -> Manifest:
    """Return the labels and annotations of a pod; `annotations` are for pods of this role only."""
    labels = run.section.pod_labels | run_labels(run, role)
    own = {"labels": labels, "annotations": {**run.section.pod_annotations, **annotations}}
    return of_the_site(run.section, own)


def of_the_site(section: Kubernetes, metadata: Manifest) -> dict[str, dict[str, str]]:
    """Return the labels and annotations of an object, with the common ones of the job or its site."""
    given = {"labels": section.labels, "annotations": section.annotations}
    both = {key: {**given[key], **metadata.get(key, {})} for key in given}
    return {key: each for key, each in both.items() if each}


def common_fields(run: PodJob) -> Manifest:
    """Return the fields that all pods of the run have in common."""
    section = run.section
    optional = {
        "serviceAccountName": section.service_account,
        "imagePullSecrets": [{"name": name} for name in section.pull_secrets],
        "nodeSelector": dict(section.node_selector),
        "tolerations": [each.model_dump(exclude_none=True) for each in section.tolerations],
        "affinity": dict(section.affinity),
        "priorityClassName": section.priority_class,
        "runtimeClassName": section.runtime_class,
        "schedulerName": section.scheduler_name,
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**_ids(section.run_as), "seccompProfile": {"type": "RuntimeDefault"}},
        **{key: value for key, value in optional.items() if value},
    }


def _ids(run_as: RunAs) -> Manifest:
    """Return the user and the groups; if the cluster assigns them, only that the user is not root."""
    not_root = {"runAsNonRoot": True}
    if run_as.by == "cluster":
        return not_root
    return {
        **(not_root if run_as.user else {}),
        "runAsUser": run_as.user,
        "runAsGroup": run_as.group,
        "fsGroup": run_as.fs_group,
        "fsGroupChangePolicy": "OnRootMismatch",
    }


def _container(run: PodJob, name: str) -> Manifest:
    container: Manifest = {
        "name": name,
        "image": run.job.image,
        "imagePullPolicy": run.section.pull_policy,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    # Also of the first container: a Secret that does not exist is then reported at once.
    if run.section.secrets and name != SUBMITTER_CONTAINER:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in run.section.secrets]
    return container


def _environment(run: PodJob, more: dict[str, str]) -> list[Manifest]:
    variables_set = {
        "HOME": "/tmp",
        "USER": "clustertrain",  # Python asks for a name, and a user that the cluster assigned has none
        variables.CODE: ":".join(run.job.code),
        variables.JOB: JOB_FILE,
        variables.RAYJOB: run.job.name,
        variables.VERSION: __version__,
        **hash_seed(run.job),
        **more,
    }
    found = {variables.NAMESPACE: "metadata.namespace", variables.POD: "metadata.name"}
    return [
        *({"name": name, "value": value} for name, value in variables_set.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in found.items()),
    ]


def _pre_stop_hook(role: str) -> Manifest:
    """Return the preStop hook, which runs before SIGTERM.

    In a worker's pod it requests a save, in the head's pod a save and a stop.
    """
    return {"preStop": {"exec": {"command": [_PYTHON, "-m", f"{_IN_POD}.pre_stop", role]}}}


def _post_start_hook(run: PodJob) -> Manifest:
    """Return the postStart hook with storage on S3: a process that sends logs and metrics of the pod's ranks.

    Its output goes to a file. If it kept the hook's pipe open, the kubelet would wait for its end.
    """
    if not run.job.storage.location.is_s3:
        return {}
    command = f"{_PYTHON} -m {_IN_POD}.post_start </dev/null >/tmp/shipping.log 2>&1 &"
    return {"postStart": {"exec": {"command": ["/bin/sh", "-c", command]}}}


def _probes(run: PodJob, port: int = HEALTH_PORT) -> Manifest:
    """Return startup and readiness probes in place of the operator's.

    The replaced probes begin after 10 s, then run every 5 s, and restart a container whose Ray has not
    started after a minute, as on a busy node. The operator's liveness probe stays: it starts after the
    startup probe passed.
    """
    health = {
        "httpGet": {"path": "/api/healthz", "port": port},
        "timeoutSeconds": 5,
        "periodSeconds": 1,
    }
    return {
        "startupProbe": {**health, "failureThreshold": round(run.section.start_deadline_s)},
        "readinessProbe": {**health, "failureThreshold": 10},
    }


_TMP_MOUNT: Manifest = {"name": "tmp", "mountPath": "/tmp"}
_JOB_MOUNT: Manifest = {"name": "job", "mountPath": f"{OWN_FOLDER}/job", "readOnly": True}
_CODE_MOUNT: Manifest = {"name": "code", "mountPath": WRITABLE}


def _small_tmp(run: PodJob) -> Manifest:
    return {"name": "tmp", "emptyDir": {"sizeLimit": disk_limit(run, small=True)}}


def _volumes(run: PodJob) -> list[Manifest]:
    return [{"name": f"volume-{n}", **_source(volume)} for n, volume in enumerate(run.volumes)]


def _source(volume: Volume) -> Manifest:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    return {"hostPath": {"path": volume.host_path, "type": "Directory"}}


def _mounts(run: PodJob) -> list[Manifest]:
    read_only = [each.read_only or each.secret or each.config_map for each in run.volumes]
    return [
        {"name": f"volume-{n}", "mountPath": volume.mount, **({"readOnly": True} if read_only[n] else {})}
        for n, volume in enumerate(run.volumes)
    ]
