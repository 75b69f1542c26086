"""Objects of a run as an API server with KubeRay gives them."""

MADE = "2026-11-21T20:00:00Z"


def rayjob(deployment="Running", job="RUNNING", reason="", message="", labels=None, **spec):
    status = {"jobDeploymentStatus": deployment, "jobStatus": job, "reason": reason, "message": message}
    groups = [{"groupName": "workers", "replicas": 2}]
    metadata = {"name": "digits", "namespace": "team", "uid": "u1", "creationTimestamp": MADE}
    return {
        "metadata": {**metadata, "labels": labels or {}},
        "spec": {"submissionMode": "K8sJobMode", "rayClusterSpec": {"workerGroupSpecs": groups}, **spec},
        "status": {"rayClusterName": "digits-abc", "startTime": MADE, **status},
    }


def pod(name, role, state="running", phase="Running", **status):
    containers = status.pop("containers", [{"name": "main", "ready": True, "state": {state: {}}}])
    return {
        "metadata": {"name": name, "namespace": "team", "labels": {"clustertrain.io/role": role}},
        "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "shared"}}]},
        "status": {"phase": phase, "containerStatuses": containers, **status},
    }


def pending(name="w1", role="worker"):
    return pod(name, role, phase="Pending", containers=[])


def on_node(made, node="gpu-7", ready="False", **metadata):
    conditions = [{"type": "Ready", "status": ready}]
    spec, status = {**made["spec"], "nodeName": node}, {**made["status"], "conditions": conditions}
    return {**made, "metadata": {**made["metadata"], **metadata}, "spec": spec, "status": status}


def event(reason, message, kind="Pod", name="w1", at="2026-11-21T20:00:09Z"):
    about = {"involvedObject": {"kind": kind, "name": name}, "lastTimestamp": at}
    return {"type": "Warning", "reason": reason, "message": message, **about}


def workload(*conditions):
    """Kueue's, of the RayJob."""
    return {"metadata": {"ownerReferences": [{"uid": "u1"}]}, "status": {"conditions": list(conditions)}}


def quota_reserved(status, message):
    return {"type": "QuotaReserved", "status": status, "reason": "Pending", "message": message}
