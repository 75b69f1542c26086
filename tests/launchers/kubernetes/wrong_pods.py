"""What the API server refuses of the pods of a RayJob: rows of wrong_manifests.py."""

from launchers.kubernetes.manifest_changes import (
    ABSENT,
    HEAD,
    HEAD_BOX,
    HEAD_POD,
    SUBMITTER_BOX,
    SUBMITTER_POD,
    WORKER_BOX,
    WORKER_POD,
    WORKERS,
    rows,
    variable,
)
from launchers.kubernetes.right_manifests import AUTOSCALER, WITHOUT_SUBMITTER, rayjob

PODS = rows(
    "pods",
    rayjob(),
    (
        "mount-without-volume",
        "is 'data', and the pod has no volume",
        {f"{WORKER_BOX}/volumeMounts/0/name": "data"},
    ),
    ("sub-path", "must be a path below the volume", {f"{HEAD_BOX}/volumeMounts/2/subPath": "../up"}),
    (
        "volume-of-two-kinds",
        "is a volume of 2 kinds, emptyDir and secret",
        {f"{HEAD_POD}/volumes/0/secret": {"secretName": "a"}},
    ),
    (
        "volume-name",
        "'my_volume', and the name of a volume",
        {f"{HEAD_POD}/volumes/+": {"name": "my_volume"}},
    ),
    ("volume-mode", "is 4440, and must be 0 to 511", {f"{HEAD_POD}/volumes/3/configMap/defaultMode": 4440}),
    ("container-name", "is 'ray_node', and the name of a container", {f"{HEAD_BOX}/name": "ray_node"}),
    ("no-image", "image is missing", {f"{WORKER_BOX}/image": ABSENT}),
    (
        "pull-policy",
        "is 'Sometimes', and must be one of Always",
        {f"{HEAD_BOX}/imagePullPolicy": "Sometimes"},
    ),
    (
        "restart-policy",
        "is 'Sometimes', and must be one of Always",
        {f"{WORKER_POD}/restartPolicy": "Sometimes"},
    ),
    ("user-negative", "is -1, and must be 0 to", {f"{HEAD_POD}/securityContext/runAsUser": -1}),
    ("group-too-large", "is 10000000000, and", {f"{HEAD_POD}/securityContext/fsGroup": 10**10}),
    (
        "change-policy",
        "is 'Sometimes', and must be one of Always, OnRootMismatch",
        {f"{HEAD_POD}/securityContext/fsGroupChangePolicy": "Sometimes"},
    ),
    ("preemption", "must be one of Never, PreemptLower", {f"{HEAD_POD}/preemptionPolicy": "Sometimes"}),
    ("pod-deadline", "is 0, and must be 1 to", {f"{WORKER_POD}/activeDeadlineSeconds": 0}),
    ("message-policy", "must be one of Fallback", {f"{HEAD_BOX}/terminationMessagePolicy": "Always"}),
    (
        "probe-timeout",
        "is -1, and must be 0 to",
        {f"{HEAD_BOX}/startupProbe": {"httpGet": {"port": 8000}, "timeoutSeconds": -1}},
    ),
    (
        "probe-port",
        "is 70000, and must be 1 to 65535",
        {f"{HEAD_BOX}/readinessProbe": {"tcpSocket": {"port": 70000}}},
    ),
    (
        "hook-command",
        "preStop.exec.command is missing",
        {f"{HEAD_BOX}/lifecycle": {"preStop": {"exec": {"command": []}}}},
    ),
    (
        "field-of-pod",
        "is 'spec.name', and must be one of metadata.name",
        {f"{HEAD_BOX}/env/+": {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.name"}}}},
    ),
    ("variable-name", "the name of a variable", {f"{HEAD_BOX}/env/+": variable("A=B")}),
    ("variable-two-values", "has both value and valueFrom", {f"{HEAD_BOX}/env/1/value": "x"}),
    ("variable-no-source", "must name exactly one source", {f"{HEAD_BOX}/env/1/valueFrom": {}}),
    (
        "request-over-limit",
        "is '4Gi', more than limits.memory",
        {f"{HEAD_BOX}/resources/requests/memory": "4Gi"},
    ),
    ("quantity-negative", "is '-1', and must not be negative", {f"{HEAD_BOX}/resources/requests/cpu": "-1"}),
    ("gpu-without-domain", "is a resource without a domain", {f"{WORKER_BOX}/resources/limits/gpu": 1}),
    (
        "gpu-request-alone",
        "is requested without a limit",
        {f"{WORKER_BOX}/resources/requests": {"nvidia.com/gpu": 1}},
    ),
    (
        "hugepages-request-alone",
        "is requested without a limit, and huge pages must have both",
        {f"{WORKER_BOX}/resources/requests/hugepages-2Mi": "4Mi"},
    ),
    (
        "hugepages-unequal",
        "is '2Mi', and the limit is '4Mi': for huge pages they must be equal",
        {
            f"{WORKER_BOX}/resources/requests/hugepages-2Mi": "2Mi",
            f"{WORKER_BOX}/resources/limits/hugepages-2Mi": "4Mi",
        },
    ),
    (
        "hugepages-torn",
        "is '3Mi', which is no multiple of a page of 2Mi",
        {f"{WORKER_BOX}/resources/limits/hugepages-2Mi": "3Mi"},
    ),
    (
        "hugepages-alone",
        "has huge pages, and neither cpu nor memory",
        {f"{WORKER_BOX}/resources": {"limits": {"hugepages-2Mi": "4Mi"}}},
    ),
    (
        "hugepages-of-no-size",
        "names no size of a page",
        {f"{WORKER_BOX}/resources/limits/hugepages-big": "4Mi"},
    ),
    ("port-large", "is 70000, and a port is 1 to 65535", {f"{HEAD_BOX}/ports": [{"containerPort": 70000}]}),
    (
        "port-name",
        "is 'a_long_name', and the name of a port",
        {f"{HEAD_BOX}/ports": [{"name": "a_long_name", "containerPort": 8265}]},
    ),
    ("hook-empty", "must have exactly one handler", {f"{HEAD_BOX}/lifecycle": {"preStop": {}}}),
    (
        "toleration-value",
        "is Exists while value is 'yes'",
        {f"{WORKER_POD}/tolerations": [{"key": "a", "operator": "Exists", "value": "yes"}]},
    ),
    (
        "toleration-seconds",
        "applies only to effect: NoExecute",
        {f"{WORKER_POD}/tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]},
    ),
    (
        "node-selector",
        "is 'a b', and a label must be letters",
        {f"{WORKER_POD}/nodeSelector": {"zone": "a b"}},
    ),
    (
        "pod-label",
        "is 'a b', and a label must be letters",
        {f"{HEAD}/template/metadata/labels": {"x": "a b"}},
    ),
    ("group-name", "'a b', and a label of its pods", {f"{WORKERS}/groupName": "a b"}),
    ("service-account", "is 'Me', and a name must be", {f"{HEAD_POD}/serviceAccountName": "Me"}),
    (
        "submitter-restarts",
        "is missing, and must be Never or OnFailure",
        {f"{SUBMITTER_POD}/restartPolicy": ABSENT},
    ),
    ("submitter-backoff", "is -1, and must not be negative", {"spec/submitterConfig": {"backoffLimit": -1}}),
    (
        "submitter-mount",
        "is 'gone', and the pod has no volume",
        {f"{SUBMITTER_BOX}/volumeMounts/0/name": "gone"},
    ),
)

_AUTOSCALER_BARE = {key: value for key, value in AUTOSCALER.items() if not key.endswith("Options")}
SECURITY = rows(
    "pod-security",
    rayjob(),
    ("root", "runAsUser is 0, the root user", {f"{HEAD_POD}/securityContext/runAsUser": 0}),
    ("root-container", "runAsUser is 0, the root user", {f"{WORKER_BOX}/securityContext/runAsUser": 0}),
    (
        "maybe-root",
        "runAsNonRoot is missing here and for the pod",
        {f"{WORKER_POD}/securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}},
    ),
    ("non-root-false", "runAsNonRoot is false", {f"{HEAD_BOX}/securityContext/runAsNonRoot": False}),
    (
        "no-seccomp",
        "seccompProfile is missing here and for the pod",
        {f"{HEAD_POD}/securityContext": {"runAsNonRoot": True}},
    ),
    (
        "seccomp-unconfined",
        "is 'Unconfined'",
        {f"{HEAD_BOX}/securityContext/seccompProfile": {"type": "Unconfined"}},
    ),
    (
        "escalation",
        "allowPrivilegeEscalation is missing",
        {f"{WORKER_BOX}/securityContext": {"capabilities": {"drop": ["ALL"]}}},
    ),
    (
        "capabilities-kept",
        "capabilities.drop is missing",
        {f"{HEAD_BOX}/securityContext": {"allowPrivilegeEscalation": False}},
    ),
    (
        "capability-added",
        "adds 'SYS_PTRACE'",
        {f"{WORKER_BOX}/securityContext/capabilities/add": ["SYS_PTRACE"]},
    ),
    (
        "privileged",
        "privileged is true",
        {
            f"{HEAD_BOX}/securityContext": {
                "privileged": True,
                "allowPrivilegeEscalation": True,
                "capabilities": {"drop": ["ALL"]},
            }
        },
        2,
    ),
    ("host-network", "hostNetwork is true", {f"{WORKER_POD}/hostNetwork": True}),
    ("host-ipc", "hostIPC is true", {f"{WORKER_POD}/hostIPC": True}),
    (
        "host-path",
        "is not an allowed kind of volume",
        {f"{HEAD_POD}/volumes/+": {"name": "x", "hostPath": {"path": "/data"}}},
    ),
    (
        "nfs",
        "is not an allowed kind of volume",
        {f"{WORKER_POD}/volumes/+": {"name": "x", "nfs": {"server": "a", "path": "/"}}},
    ),
    ("host-port", "hostPort is 8265", {f"{HEAD_BOX}/ports": [{"containerPort": 8265, "hostPort": 8265}]}),
    (
        "sysctl",
        "is 'kernel.msgmax'",
        {f"{HEAD_POD}/securityContext/sysctls": [{"name": "kernel.msgmax", "value": "1"}]},
    ),
    (
        "proc-mount",
        "procMount is 'Unmasked'",
        {f"{HEAD_POD}/hostUsers": False, f"{HEAD_BOX}/securityContext/procMount": "Unmasked"},
    ),
    ("selinux", "is 'spc_t'", {f"{HEAD_POD}/securityContext/seLinuxOptions": {"type": "spc_t"}}),
    ("apparmor", "is 'Unconfined'", {f"{HEAD_BOX}/securityContext/appArmorProfile": {"type": "Unconfined"}}),
    (
        "probe-host",
        "host is '10.0.0.1'",
        {f"{HEAD_BOX}/startupProbe": {"tcpSocket": {"host": "10.0.0.1", "port": 6379}}},
    ),
    (
        "init-container",
        "allowPrivilegeEscalation is missing",
        {f"{HEAD_POD}/initContainers": [{"name": "code", "image": "a:1"}]},
        2,
    ),
    ("no-submitter", "makes the operator add a pod for the submitter", WITHOUT_SUBMITTER),
    ("submitter-root", "runAsUser is 0, the root user", {f"{SUBMITTER_POD}/securityContext/runAsUser": 0}),
    (
        "submitter-escalation",
        "capabilities.drop is missing",
        {f"{SUBMITTER_BOX}/securityContext": {"allowPrivilegeEscalation": False}},
    ),
    (
        "sidecar",
        "makes the operator add the submitter to the head's pod",
        {"spec/submissionMode": "SidecarMode", **WITHOUT_SUBMITTER},
    ),
    ("autoscaler", "makes the operator add a container for the autoscaler", _AUTOSCALER_BARE),
)
