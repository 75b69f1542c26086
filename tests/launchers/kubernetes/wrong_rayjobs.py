"""What the KubeRay operator refuses of a RayJob or RayCluster: rows of wrong_manifests.py."""

from launchers.kubernetes.manifest_changes import (
    ABSENT,
    CLUSTER,
    HEAD,
    HEAD_BOX,
    HEAD_POD,
    WORKER_POD,
    WORKERS,
    Change,
    rows,
    variable,
)
from launchers.kubernetes.right_manifests import AUTOSCALER, RULES, WITHOUT_SUBMITTER, raycluster, rayjob

_RULE = "spec/deletionStrategy/deletionRules"
_LEGACY = {"onSuccess": {"policy": "DeleteCluster"}, "onFailure": {"policy": "DeleteCluster"}}
_CONDITION = {"jobStatus": "SUCCEEDED", "ttlSeconds": 60}
_SELECTOR: Change = {CLUSTER: ABSENT, "spec/clusterSelector": {"ray.io/cluster": "mine"}}
_SIDECAR: Change = {"spec/submissionMode": "SidecarMode"}
_FT: Change = {f"{CLUSTER}/gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}}
_IDLE = f"{WORKERS}/idleTimeoutSeconds"

OPERATOR = rows(
    "operator",
    rayjob(),
    ("name-48", "48 characters long, and at most 47", {"metadata/name": "a" * 48}),
    ("name-digit", "'1right', and must be lower-case", {"metadata/name": "1right"}),
    ("name-dot", "'right.job', and must be lower-case", {"metadata/name": "right.job"}),
    ("ttl-negative", "is -1, and must not be negative", {"spec/ttlSecondsAfterFinished": -1}),
    (
        "ttl-without-shutdown",
        "ttlSecondsAfterFinished is 600 while shutdownAfterJobFinishes is false",
        {"spec/shutdownAfterJobFinishes": False},
        2,
    ),
    (
        "suspend-without-shutdown",
        "suspend is true while shutdownAfterJobFinishes is missing",
        {
            "spec/suspend": True,
            "spec/shutdownAfterJobFinishes": ABSENT,
            "spec/ttlSecondsAfterFinished": ABSENT,
        },
        2,
    ),
    ("deadline-0", "is 0, and must be above 0", {"spec/activeDeadlineSeconds": 0}),
    ("backoff-negative", "is -1, and must not be negative", {"spec/backoffLimit": -1}),
    ("neither-cluster-nor-selector", "is missing, and so is clusterSelector", {CLUSTER: ABSENT}),
    ("selector-without-name", "has no ray.io/cluster", {**_SELECTOR, "spec/clusterSelector": {"a": "b"}}, 2),
    ("selector-and-backoff", "is 2, and with clusterSelector no second", _SELECTOR),
    (
        "selector-and-suspend",
        "is true, which clusterSelector does not allow",
        {**_SELECTOR, "spec/backoffLimit": 0, "spec/suspend": True},
    ),
    (
        "selector-and-sidecar",
        "is given with SidecarMode",
        {**_SELECTOR, **_SIDECAR, **WITHOUT_SUBMITTER, "spec/backoffLimit": 0},
        2,
    ),
    ("sidecar-and-template", "submitterPodTemplate is given with SidecarMode", _SIDECAR, 3),
    (
        "sidecar-and-restart",
        "is 'Always', and must be Never with SidecarMode",
        {**_SIDECAR, **WITHOUT_SUBMITTER, f"{HEAD_POD}/restartPolicy": "Always"},
        2,
    ),
    (
        "interactive-and-backoff",
        "is 2, and InteractiveMode creates no second cluster",
        {"spec/submissionMode": "InteractiveMode", **WITHOUT_SUBMITTER},
    ),
    ("runtime-env-list", "must contain a mapping", {"spec/runtimeEnvYAML": "[a, b]"}),
    ("runtime-env-broken", "is not YAML", {"spec/runtimeEnvYAML": "a: [b"}),
    (
        "rules-and-shutdown",
        "are given while shutdownAfterJobFinishes is true",
        {**RULES, "spec/shutdownAfterJobFinishes": True},
    ),
    (
        "rules-twice",
        "is a second DeleteCluster for FAILED",
        {**RULES, f"{_RULE}/+": {"policy": "DeleteCluster", "condition": {"jobStatus": "FAILED"}}},
    ),
    (
        "rules-out-of-order",
        "is 10 for DeleteCluster after SUCCEEDED, less than 60 for DeleteWorkers",
        {**RULES, f"{_RULE}/1/condition": {"jobStatus": "SUCCEEDED", "ttlSeconds": 10}},
    ),
    (
        "rules-and-selector",
        "is DeleteCluster, and the cluster of a clusterSelector",
        {
            **RULES,
            **_SELECTOR,
            "spec/backoffLimit": 0,
            _RULE: [{"policy": "DeleteCluster", "condition": _CONDITION}],
        },
    ),
    ("rules-and-autoscaler", "is DeleteWorkers while the autoscaler is on", {**RULES, **AUTOSCALER}),
    (
        "ends-and-none",
        "is DeleteNone while shutdownAfterJobFinishes is true",
        {"spec/deletionStrategy": {**_LEGACY, "onFailure": {"policy": "DeleteNone"}}},
    ),
    (
        "ends-without-policy",
        "onFailure.policy is null, and must be one of DeleteWorkers",
        {"spec/deletionStrategy": {**_LEGACY, "onFailure": {}}},
    ),
    ("no-container", "has no container", {f"{HEAD_POD}/containers": []}),
    ("worker-no-container", "has no container", {f"{WORKER_POD}/containers": []}),
    (
        "parameters-and-resources",
        "is given while rayStartParams has num-cpus",
        {f"{HEAD}/resources": {"CPU": "1"}},
    ),
    ("parameter-labels", "is not allowed there", {f"{WORKERS}/rayStartParams": {"labels": "a=b"}}),
    ("group-label", "is 'a b', and a label must be letters", {f"{WORKERS}/labels": {"zone": "a b"}}),
    ("min-over-max", "is 3, more than maxReplicas, which is 2", {f"{WORKERS}/minReplicas": 3}),
    ("min-negative", "is -1, and must not be negative", {f"{WORKERS}/minReplicas": -1}),
    ("max-negative", "is -2, and must not be negative", {f"{WORKERS}/maxReplicas": -2}, 2),
    ("idle-timeout", "is 60, which applies only with autoscaler v2", {_IDLE: 60}),
    ("idle-timeout-negative", "is -1, and must not be negative", {**AUTOSCALER, _IDLE: -1}),
    (
        "autoscaler-idle-negative",
        "is -1, and must not be negative",
        {**AUTOSCALER, f"{CLUSTER}/autoscalerOptions/idleTimeoutSeconds": -1},
    ),
    (
        "autoscaler-suspend",
        "is true while enableInTreeAutoscaling",
        {**AUTOSCALER, f"{WORKERS}/suspend": True},
    ),
    (
        "autoscaler-restart",
        "is 'OnFailure', and must be Never with autoscaler v2",
        {**AUTOSCALER, f"{WORKER_POD}/restartPolicy": "OnFailure"},
    ),
    (
        "autoscaler-variable",
        "is set together with autoscalerOptions.version",
        {**AUTOSCALER, f"{HEAD_BOX}/env/+": variable("RAY_enable_autoscaler_v2")},
    ),
    (
        "autoscaler-variable-alone",
        "is set while enableInTreeAutoscaling is not true",
        {f"{HEAD_BOX}/env/+": variable("RAY_enable_autoscaler_v2")},
    ),
    ("token-old-ray", "is 2.40.0, and token authentication", {f"{CLUSTER}/rayVersion": "2.40.0"}),
    ("token-no-version", "is missing, and authOptions.mode is token", {f"{CLUSTER}/rayVersion": ABSENT}),
    ("token-odd-version", "is 'nightly', and authOptions.mode", {f"{CLUSTER}/rayVersion": "nightly"}),
    (
        "token-of-kubernetes",
        "is true, which the operator does not support for a RayJob",
        {f"{CLUSTER}/authOptions/enableK8sTokenAuth": True},
    ),
    (
        "upgrade-strategy",
        "which the operator refuses for the cluster of a RayJob",
        {f"{CLUSTER}/upgradeStrategy": {"type": "Recreate"}},
    ),
    (
        "redis-annotation-too",
        "is given while the annotation ray.io/ft-enabled",
        {**_FT, "metadata/annotations": {"ray.io/ft-enabled": "true"}},
    ),
    (
        "redis-address",
        "RAY_REDIS_ADDRESS is set without gcsFaultToleranceOptions",
        {f"{HEAD_BOX}/env/+": variable("RAY_REDIS_ADDRESS", "redis:6379")},
    ),
    (
        "redis-password",
        "is given together with gcsFaultToleranceOptions",
        {**_FT, f"{HEAD}/rayStartParams": {"redis-password": "x"}},
    ),
    (
        "redis-password-variable",
        "REDIS_PASSWORD is set in the head's environment",
        {**_FT, f"{HEAD_BOX}/env/+": variable("REDIS_PASSWORD")},
    ),
    ("redis-username", "is not allowed there", {f"{HEAD}/rayStartParams": {"redis-username": "x"}}),
)

CLUSTERS = [
    *rows(
        "operator",
        raycluster(),
        ("cluster-name-54", "54 characters long, and at most 53", {"metadata/name": "a" * 54}),
        ("cluster-min-over-max", "is 9, more than maxReplicas", {"spec/workerGroupSpecs/0/minReplicas": 9}),
        (
            "cluster-kubernetes-token",
            "needs Ray 2.55.0 or later",
            {"spec/rayVersion": "2.53.0", "spec/authOptions/enableK8sTokenAuth": True},
        ),
        (
            "cluster-token-both",
            "is given while enableK8sTokenAuth is true",
            {"spec/authOptions": {"mode": "token", "enableK8sTokenAuth": True, "secretName": "a"}},
        ),
    ),
]

# Fields that only operators from a version on know: no refusals, marks.
NEEDS: dict[str, Change] = {
    "networkPolicy": {f"{CLUSTER}/networkPolicy": {}},
    "tlsOptions": {f"{CLUSTER}/tlsOptions": {}},
    "historyServerOptions": {f"{CLUSTER}/historyServerOptions": {}},
    "command": {**AUTOSCALER, f"{CLUSTER}/autoscalerOptions/command": ["a"]},
    "backend": {**_FT, f"{CLUSTER}/gcsFaultToleranceOptions/backend": "redis"},
    "ingressOptions": {f"{HEAD}/ingressOptions": {}},
    "priority": {f"{WORKERS}/priority": 1},
}
