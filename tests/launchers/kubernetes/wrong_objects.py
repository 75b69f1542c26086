"""What the API server refuses at once: rows of wrong_manifests.py."""

from launchers.kubernetes.manifest_changes import (
    ABSENT,
    HEAD,
    HEAD_BOX,
    HEAD_POD,
    WORKER_BOX,
    WORKERS,
    rows,
    variable,
)
from launchers.kubernetes.right_manifests import RULES, beside, other, rayjob

_RULE = "spec/deletionStrategy/deletionRules"
_BOX_OF = "spec/template/spec/containers/0"
_BOXES = other("Job")["spec"]["template"]["spec"] | {"restartPolicy": None}
_TEXT_PORT = {f"{HEAD_BOX}/ports": [{"containerPort": "80"}]}
_BOX = rayjob()["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]

API = [
    *rows(
        "api",
        rayjob(),
        ("name-upper-case", "'Right', and must be lower-case", {"metadata/name": "Right"}, 2),
        ("namespace", "'My_Space', and a namespace", {"metadata/namespace": "My_Space"}),
        ("version", "and must be ray.io/v1 or ray.io/v1alpha1 for a RayJob", {"apiVersion": "ray.io/v2"}),
        ("label", "is 'a b', and a label must be letters", {"metadata/labels": {"team": "a b"}}),
        ("labels-text", "is 'team', and must be a mapping", {"metadata/labels": "team"}),
        ("entrypoint-number", "is 1, and must be text", {"spec/entrypoint": 1}, 2),
        ("replicas-fraction", "must be a whole number", {f"{WORKERS}/replicas": 1.5}),
        ("shutdown-text", "is 'yes', and must be true or", {"spec/shutdownAfterJobFinishes": "yes"}, 3),
        ("group-without-name", "groupName is missing", {f"{WORKERS}/groupName": ABSENT}),
        ("label-long", "has 64 characters, and at most 63", {"metadata/labels": {"team": "a" * 64}}),
        ("label-number", "is 7, and must be text", {"metadata/labels": {"team": 7}}),
        ("annotation-yes", "is true, and must be text", {"metadata/annotations": {"a": True}}),
        (
            "annotations-large",
            "have 300001 bytes together, and at most 262144 are allowed",
            {"metadata/annotations": {"a": "x" * 300_000}},
        ),
        ("variable-number", "is 1, and must be text", {f"{HEAD_BOX}/env/+": variable("A", 1)}),
        (
            "variable-twice",
            "is 'HOME', the same as in another variable",
            {f"{HEAD_BOX}/env/+": variable("HOME")},
        ),
        ("parameter-number", "is 2, and must be text", {f"{HEAD}/rayStartParams": {"num-cpus": 2}}),
        ("args-number", "is 3, and must be text", {f"{HEAD_BOX}/args": ["--n", 3]}),
        ("quantity", "'16GB', which is not a quantity", {f"{WORKER_BOX}/resources/limits/memory": "16GB"}),
        ("quantity-float", "is 0.5, which is not a quantity", {f"{WORKER_BOX}/resources/requests/cpu": 0.5}),
        (
            "container-twice",
            "is 'ray-node', the same as in another entry",
            {f"{HEAD_POD}/containers/+": _BOX},
        ),
        (
            "volume-twice",
            "is 'tmp', the same as in another entry",
            {f"{HEAD_POD}/volumes/+": {"name": "tmp", "emptyDir": {}}},
        ),
        (
            "mount-twice",
            "is '/tmp', the same as in another mount",
            {f"{HEAD_BOX}/volumeMounts/+": {"name": "runs", "mountPath": "/tmp"}},
        ),
        ("runtime-env-mapping", "is a mapping, and must be text", {"spec/runtimeEnvYAML": {"pip": ["a"]}}),
        ("start-deadline-0", "is 0, and must be above 0", {"spec/preRunningDeadlineSeconds": 0}),
        ("manager", "is 'me', and must be ray.io/kuberay-operator", {"spec/managedBy": "me"}),
        (
            "deletion-both-ways",
            "has both deletionRules and onSuccess or onFailure",
            {**RULES, "spec/deletionStrategy/onSuccess": {"policy": "DeleteCluster"}},
        ),
        (
            "deletion-one-end",
            "must have onSuccess and onFailure, or deletionRules",
            {"spec/deletionStrategy": {"onSuccess": {"policy": "DeleteCluster"}}},
        ),
        ("deletion-no-rule", "has no rule, and must have one", {**RULES, _RULE: []}),
        ("deletion-policy", "is 'DeleteAll', and must be one", {**RULES, f"{_RULE}/0/policy": "DeleteAll"}),
        (
            "deletion-state",
            "is 'DONE', and must be SUCCEEDED or FAILED",
            {**RULES, f"{_RULE}/0/condition/jobStatus": "DONE"},
        ),
        (
            "deletion-two-states",
            "has jobStatus and jobDeploymentStatus, and must have one",
            {**RULES, f"{_RULE}/0/condition/jobDeploymentStatus": "Failed"},
        ),
        (
            "deletion-ttl",
            "is -1, and must not be negative",
            {**RULES, f"{_RULE}/0/condition/ttlSeconds": -1},
        ),
    ),
    *rows(
        "api",
        beside("ConfigMap"),
        ("map-key", "is not a valid key", {"data": {"a b": "c"}}),
        ("map-number", "is 7, and must be text", {"data": {"seed": 7}}),
        ("map-large", "has 1200035 bytes, and at most 1048576", {"data": {"code": "x" * 1_200_000}}),
        ("map-base64", "is not base64", {"binaryData": {"code": "%%%"}}),
        ("map-key-twice", "is also a key of data", {"data": {"code.tar.gz": "x"}}),
        ("map-name", "'my_job', and must be lower-case", {"metadata/name": "my_job"}),
    ),
    *rows("api", beside("Secret"), ("secret-base64", "is not base64", {"data": {"KEY": "not base64"}})),
    *rows(
        "api",
        beside("NetworkPolicy"),
        ("policy-type", "is 'ingress', and must be Ingress or Egress", {"spec/policyTypes/0": "ingress"}),
        ("policy-peer", "names no peer", {"spec/ingress/0/from/0": {}}),
        ("policy-block", "has podSelector and ipBlock", {"spec/ingress/1/from/1/podSelector": {}}),
        (
            "policy-cidr",
            "'10.0.0.0', and must be a network",
            {"spec/ingress/1/from/1/ipBlock": {"cidr": "10.0.0.0"}},
        ),
        ("policy-except", "is not a part of", {"spec/ingress/1/from/1/ipBlock/except": ["192.168.0.0/16"]}),
        ("policy-protocol", "is 'tcp', and must be TCP", {"spec/ingress/1/ports/0/protocol": "tcp"}),
        ("policy-port", "is 70000, and a port is 1 to 65535", {"spec/ingress/1/ports/0/port": 70000}),
        ("policy-port-text", "is '8265', and the name of a port", {"spec/ingress/1/ports/0/port": "8265"}),
        ("policy-range", "is 9999, less than port, which is 10000", {"spec/ingress/1/ports/1/endPort": 9999}),
        ("policy-range-name", "is given without a number in port", {"spec/ingress/1/ports/2/endPort": 9}),
        (
            "policy-operator",
            "is 'Is', and must be In, NotIn",
            {"spec/ingress/1/from/0/podSelector/matchExpressions/0/operator": "Is"},
        ),
        (
            "policy-values",
            "are missing, and In needs them",
            {"spec/ingress/1/from/0/podSelector/matchExpressions/0/values": []},
        ),
        (
            "policy-value",
            "is 'A b', and a label must be letters",
            {"spec/ingress/1/from/0/podSelector/matchExpressions/0/values": ["A b"]},
        ),
    ),
    *rows(
        "api",
        beside("PersistentVolumeClaim"),
        ("claim-mode", "is 'RWX', and must be one of", {"spec/accessModes": ["RWX"]}),
        ("claim-no-mode", "accessModes is missing", {"spec/accessModes": ABSENT}),
        ("claim-no-size", "is missing, and must be a size above 0", {"spec/resources": {}}),
        ("claim-size-0", "is '0', and must be a size above 0", {"spec/resources/requests/storage": "0"}),
    ),
    *rows(
        "api",
        beside("PodDisruptionBudget"),
        ("budget-both", "has both minAvailable and maxUnavailable", {"spec/minAvailable": 1}),
        ("budget-negative", "is -1, and must be a number from 0", {"spec/maxUnavailable": -1}),
    ),
    *rows(
        "api",
        rayjob(),
        ("ray-kind", "is 'Rayjob'", {"kind": "Rayjob"}),
        ("template-field", "nodeSelectors is not a field of Kubernetes", {f"{HEAD_POD}/nodeSelectors": {}}),
        ("template-type", "containerPort is '80', and must be a whole number", _TEXT_PORT),
    ),
    *rows(
        "api",
        other("Service"),
        ("service-field", "selectors is not a field of Kubernetes", {"spec/selectors": {}}),
        ("service-port-text", "is '80', and must be a whole number", {"spec/ports/0/port": "80"}),
        ("service-port-missing", "port is missing", {"spec/ports": [{"name": "web"}]}),
        ("service-status", "is a list, and must be a mapping", {"spec": []}),
    ),
    *rows(
        "api",
        other("Deployment"),
        ("deployment-version", "Kubernetes 1.34 has no such kind", {"apiVersion": "apps/v1beta1"}),
        ("deployment-kind", "has no such kind", {"kind": "Deploymnt"}),
        ("deployment-replicas", "is '2', and must be a whole number", {"spec/replicas": "2"}),
        (
            "deployment-gpu",
            "is a resource without a domain",
            {f"{_BOX_OF}/resources": {"limits": {"gpu": 1}}},
        ),
        ("deployment-container", "the name of a container", {f"{_BOX_OF}/name": "A_b"}),
        (
            "deployment-mount",
            "the pod has no volume of this name",
            {f"{_BOX_OF}/volumeMounts": [{"name": "x", "mountPath": "/x"}]},
        ),
    ),
    *rows(
        "api",
        other("Job"),
        ("job-restarts", "is missing, and must be Never or OnFailure", {"spec/template/spec": _BOXES}),
        ("job-argument", "is 3, and must be text", {f"{_BOX_OF}/args": [3]}),
    ),
]
