"""What queues refuse of a RayJob, and what nobody does: rows of wrong_manifests.py."""

from launchers.kubernetes.manifest_changes import (
    ABSENT,
    CLUSTER,
    HEAD,
    HEAD_POD,
    WORKER_BOX,
    WORKER_POD,
    WORKERS,
    Change,
    rows,
)
from launchers.kubernetes.right_manifests import AUTOSCALER, KUEUE, WITHOUT_SUBMITTER, beside, rayjob

_BOX = rayjob()["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
_GROUP = rayjob()["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
_HEAD = rayjob()["spec"]["rayClusterSpec"]["headGroupSpec"]

_MANY = [_GROUP | {"groupName": f"group-{n}"} for n in range(8)]
_TOPOLOGY = f"{WORKERS}/template/metadata/annotations"
_HTTP: Change = {"spec/submissionMode": "HTTPMode", **WITHOUT_SUBMITTER}
_AT = "kueue.x-k8s.io/podset"
QUEUES = [
    *rows(
        "kueue",
        rayjob(),
        (
            "kueue-shutdown",
            "is not true, and a job in Kueue's queue",
            {**KUEUE, "spec/shutdownAfterJobFinishes": ABSENT, "spec/ttlSecondsAfterFinished": ABSENT},
            2,
        ),
        (
            "kueue-selector",
            "is given, and Kueue has to start the cluster itself",
            {
                **KUEUE,
                CLUSTER: {"headGroupSpec": _HEAD, "authOptions": {"mode": "token"}, "rayVersion": "2.60.0"},
                "spec/clusterSelector": {"ray.io/cluster": "mine"},
                "spec/backoffLimit": 0,
            },
            2,
        ),
        (
            "kueue-autoscaler",
            "is true, and Kueue 0.14 admits a RayJob only at a fixed size",
            {**KUEUE, **AUTOSCALER},
        ),
        (
            "kueue-groups",
            "has 8 groups: with the head 9 kinds of pods",
            {**KUEUE, **_HTTP, f"{CLUSTER}/workerGroupSpecs": _MANY},
        ),
        (
            "kueue-head",
            "is 'head', a name that Kueue reserves for the head",
            {**KUEUE, f"{WORKERS}/groupName": "head"},
        ),
        (
            "kueue-queue",
            "is 'My_Queue', and the name of a queue",
            {"metadata/labels": {"kueue.x-k8s.io/queue-name": "My_Queue"}},
        ),
        (
            "kueue-time",
            "is 'soon', and must be a number of seconds",
            {
                "metadata/labels": {
                    "kueue.x-k8s.io/queue-name": "a",
                    "kueue.x-k8s.io/max-exec-time-seconds": "soon",
                }
            },
        ),
        (
            "topology-two",
            "and at most one is allowed",
            {**KUEUE, _TOPOLOGY: {f"{_AT}-required-topology": "a/b", f"{_AT}-preferred-topology": "a/b"}},
        ),
        (
            "topology-level",
            "is 'my rack', and a level of the topology",
            {**KUEUE, _TOPOLOGY: {f"{_AT}-preferred-topology": "my rack"}},
        ),
        (
            "topology-free",
            "is 'maybe', and must be 'true' or 'false'",
            {**KUEUE, _TOPOLOGY: {f"{_AT}-unconstrained-topology": "maybe"}},
        ),
        (
            "slice-no-size",
            "is missing, and kueue.x-k8s.io/podset-slice-required-topology needs it",
            {**KUEUE, _TOPOLOGY: {f"{_AT}-slice-required-topology": "a/b"}},
        ),
        (
            "slice-large",
            "is 3, and there are 2 pods",
            {**KUEUE, _TOPOLOGY: {f"{_AT}-slice-required-topology": "a/b", f"{_AT}-slice-size": "3"}},
        ),
    ),
    *rows(
        "kai",
        rayjob(),
        (
            "kai-submitter",
            "KAI's operator plugin refuses it",
            {"metadata/labels": {"kai.scheduler/queue": "team"}},
        ),
    ),
]

NOBODY = [
    *rows(
        "nobody",
        rayjob(),
        (
            "mode-typo",
            "'K8SJobMode': the operator starts the cluster and never",
            {"spec/submissionMode": "K8SJobMode"},
        ),
        ("no-entrypoint", "`ray job submit` has no command to run", {"spec/entrypoint": ABSENT}),
        (
            "no-shutdown",
            "the cluster stays, with its GPUs",
            {"spec/shutdownAfterJobFinishes": ABSENT, "spec/ttlSecondsAfterFinished": ABSENT},
        ),
        ("no-token", "can run code there", {f"{CLUSTER}/authOptions": ABSENT}),
        ("image-without-tag", "without a tag", {f"{WORKER_BOX}/image": "registry.example.com:5000/train"}),
        (
            "other-ray",
            "and rayVersion is '2.60.0'",
            {f"{WORKER_BOX}/image": "docker.io/rayproject/ray:2.54.0-py311"},
        ),
        (
            "no-replicas",
            "is missing, and its default is 0",
            {f"{WORKERS}/replicas": ABSENT, f"{WORKERS}/minReplicas": ABSENT},
        ),
        ("replicas-outside", "is 5, outside minReplicas 2 to maxReplicas 2", {f"{WORKERS}/replicas": 5}),
        (
            "group-twice",
            "is 'workers', the same as in another group",
            {f"{CLUSTER}/workerGroupSpecs/+": _GROUP},
        ),
        (
            "ray-not-first",
            "begins with proxy, and the operator starts Ray in the first",
            {f"{HEAD_POD}/containers": [_BOX | {"name": name} for name in ("proxy", "ray-head")]},
        ),
        (
            "selector-and-cluster",
            "is given together with clusterSelector, and has no effect",
            {"spec/clusterSelector": {"ray.io/cluster": "mine"}, "spec/backoffLimit": 0},
        ),
        (
            "dashboard-local",
            "'127.0.0.1': the submitter and the operator",
            {f"{HEAD}/rayStartParams": {"dashboard-host": "127.0.0.1"}},
        ),
        (
            "grace-negative",
            "is -1, which counts as 1: no time",
            {f"{WORKER_POD}/terminationGracePeriodSeconds": -1},
        ),
        (
            "two-queues",
            "name the queues of 2 schedulers",
            {"metadata/labels": {"kueue.x-k8s.io/queue-name": "a", "volcano.sh/queue-name": "a"}},
        ),
        (
            "yunikorn-no-app",
            "is missing, and YuniKorn needs it to group the pods",
            {"metadata/labels": {"yunikorn.apache.org/queue": "root.a"}},
        ),
        (
            "volcano-mode",
            "is 'strict', and must be 'hard' or 'soft'",
            {"metadata/labels": {"volcano.sh/queue-name": "a", "volcano.sh/network-topology-mode": "strict"}},
        ),
        (
            "kueue-group-submitter",
            "a name that Kueue reserves for the submitter",
            {**KUEUE, f"{WORKERS}/groupName": "submitter"},
        ),
        (
            "kueue-7-groups",
            "has 7 groups: with the head and the submitter 9 kinds",
            {**KUEUE, f"{CLUSTER}/workerGroupSpecs": _MANY[:7]},
        ),
    ),
    *rows(
        "nobody",
        beside("NetworkPolicy"),
        ("policy-not-egress", "is given while policyTypes has no Egress", {"spec/policyTypes": ["Ingress"]}),
    ),
]
