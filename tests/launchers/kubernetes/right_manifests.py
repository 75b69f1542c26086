"""Manifests that nobody refuses: what wrong ones of the tests begin as."""

import copy

import yaml

from launchers.kubernetes.manifest_changes import (
    ABSENT,
    CLUSTER,
    HEAD,
    HEAD_BOX,
    HEAD_POD,
    WORKER_BOX,
    WORKER_POD,
    WORKERS,
    Change,
    Manifest,
    changed,
)

_POD = """
automountServiceAccountToken: false
terminationGracePeriodSeconds: 60
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: ray-node
    image: registry.example.com/team/train:1.4
    imagePullPolicy: IfNotPresent
    env:
      - {name: HOME, value: /tmp}
      - name: POD
        valueFrom: {fieldRef: {fieldPath: metadata.name}}
    lifecycle: {preStop: {exec: {command: [python, -m, save]}}}
    resources:
      requests: {cpu: 500m, memory: 2Gi}
      limits: {cpu: "1", memory: 2Gi}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      - {name: shm, mountPath: /dev/shm}
      - {name: runs, mountPath: /mnt/runs}
      - {name: job, mountPath: /opt/job, readOnly: true}
volumes:
  - {name: tmp, emptyDir: {}}
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
  - {name: runs, persistentVolumeClaim: {claimName: runs}}
  - {name: job, configMap: {name: right-job, defaultMode: 0440}}
"""

_RAYJOB = """
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: right
  labels: {app.kubernetes.io/name: train}
  annotations: {example.com/owner: "the team, in words"}
spec:
  entrypoint: python -m train
  submissionMode: K8sJobMode
  backoffLimit: 2
  preRunningDeadlineSeconds: 1200
  shutdownAfterJobFinishes: true
  ttlSecondsAfterFinished: 600
  submitterConfig: {backoffLimit: 8}
  submitterPodTemplate: {}
  rayClusterSpec:
    rayVersion: 2.60.0
    authOptions: {mode: token}
    headGroupSpec:
      rayStartParams: {num-cpus: "0"}
      template: {}
    workerGroupSpecs:
      - groupName: workers
        replicas: 2
        minReplicas: 2
        maxReplicas: 2
        rayStartParams: {}
        template: {}
"""

_BESIDE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: right-job}
immutable: true
data: {job.yaml: "name: right"}
binaryData: {code.tar.gz: H4sIAAAAAAAAAwMAAAAAAAAAAAA=}
---
apiVersion: v1
kind: Secret
metadata: {name: right-keys}
stringData: {KEY: value}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: right-head}
spec:
  podSelector: {matchLabels: {app.kubernetes.io/name: train}}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - podSelector: {matchLabels: {app.kubernetes.io/name: train}}
    - from:
        - namespaceSelector: {}
          podSelector:
            matchExpressions: [{key: app.kubernetes.io/name, operator: In, values: [kuberay-operator]}]
        - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}
      ports:
        - {protocol: TCP, port: 8265}
        - {protocol: TCP, port: 10000, endPort: 19999}
        - {port: metrics}
  egress:
    - ports: [{protocol: UDP, port: 53}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: runs}
spec:
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 100Gi}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: right}
spec:
  maxUnavailable: 0
  selector: {matchLabels: {app.kubernetes.io/name: train}}
"""


def rayjob() -> Manifest:
    """Head, two workers, the submitter's pod, with all that a run of the kit has."""
    job = yaml.safe_load(_RAYJOB)
    labels = {"metadata": {"labels": {"app.kubernetes.io/name": "train"}}}
    for group in (job["spec"]["rayClusterSpec"]["headGroupSpec"], *_groups(job)):
        group["template"] = {**copy.deepcopy(labels), "spec": yaml.safe_load(_POD)}
    submitter = {**copy.deepcopy(labels), "spec": yaml.safe_load(_POD)}
    submitter["spec"]["restartPolicy"] = "Never"
    job["spec"]["submitterPodTemplate"] = submitter
    return job


def beside(kind: str) -> Manifest:
    """An object of this kind beside the RayJob."""
    return next(each for each in yaml.safe_load_all(_BESIDE) if each["kind"] == kind)


def _groups(job: Manifest) -> list[Manifest]:
    return job["spec"]["rayClusterSpec"]["workerGroupSpecs"]


def _rule(policy: str, ttl_s: int, **condition: str) -> Manifest:
    return {"policy": policy, "condition": {"ttlSeconds": ttl_s, **condition}}


WITHOUT_SUBMITTER: Change = {"spec/submitterConfig": ABSENT, "spec/submitterPodTemplate": ABSENT}
RULES: Change = {
    "spec/shutdownAfterJobFinishes": ABSENT,
    "spec/ttlSecondsAfterFinished": ABSENT,
    "spec/deletionStrategy": {
        "deletionRules": [
            _rule("DeleteWorkers", 60, jobStatus="SUCCEEDED"),
            _rule("DeleteCluster", 600, jobStatus="SUCCEEDED"),
            _rule("DeleteCluster", 60, jobStatus="FAILED"),
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
KUEUE: Change = {
    "metadata/labels": {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "high"}
}
_GPU = {"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"memory": "16Gi", "nvidia.com/gpu": 1}}
_GPU_POD: Change = {
    f"{WORKER_POD}/nodeSelector": {"node.kubernetes.io/instance-type": "gpu.large"},
    f"{WORKER_POD}/tolerations": [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "gone", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 60},
    ],
    f"{WORKER_BOX}/resources": _GPU,
}
_EMPTY: Change = {
    "metadata/namespace": "",
    f"{HEAD_POD}/restartPolicy": "",
    f"{HEAD_POD}/dnsPolicy": "",
    f"{HEAD_POD}/tolerations": [{"key": "a", "operator": "", "value": "b", "effect": ""}],
    f"{HEAD_POD}/serviceAccountName": "",
    f"{HEAD_BOX}/imagePullPolicy": "",
    f"{HEAD_BOX}/ports": [{"containerPort": 8265, "protocol": "", "name": ""}],
    f"{HEAD_BOX}/env/0/value": "",
    f"{WORKER_POD}/volumes/0/emptyDir/medium": "",
}
_SECOND_GROUP = _groups(rayjob())[0] | {"groupName": "more"}
_VOLCANO = {"volcano.sh/queue-name": "team", "ray.io/priority-class-name": "high"}
_YUNIKORN = {
    "yunikorn.apache.org/app-id": "right",
    "yunikorn.apache.org/queue": "root.team",
    "ray.io/gang-scheduling-enabled": "true",
}

RIGHT: dict[str, Manifest] = {
    "a job": rayjob(),
    "47 letters": changed(rayjob(), {"metadata/name": "a" * 47}),
    "gpus": changed(rayjob(), _GPU_POD),
    "two groups": changed(rayjob(), {f"{CLUSTER}/workerGroupSpecs/+": _SECOND_GROUP}),
    "http": changed(rayjob(), {"spec/submissionMode": "HTTPMode", **WITHOUT_SUBMITTER}),
    "deletion rules": changed(rayjob(), RULES),
    "deletion after both ends": changed(
        rayjob(),
        {
            "spec/deletionStrategy": {
                "onSuccess": {"policy": "DeleteCluster"},
                "onFailure": {"policy": "DeleteSelf"},
            }
        },
    ),
    "an autoscaler": changed(rayjob(), AUTOSCALER),
    "resources beside the parameters": changed(
        rayjob(),
        {f"{HEAD}/rayStartParams": {}, f"{HEAD}/resources": {"CPU": "0"}, f"{HEAD}/labels": {"a": "b"}},
    ),
    "a secret, a runtime environment, empty texts for defaults": changed(
        rayjob(),
        {
            **_EMPTY,
            f"{HEAD_BOX}/envFrom": [{"secretRef": {"name": "right-keys"}}],
            "spec/runtimeEnvYAML": "env_vars:\n  A: b\n",
            "spec/metadata": {"team": "vision"},
        },
    ),
    "kueue": changed(rayjob(), KUEUE),
    "kueue with topology": changed(
        rayjob(),
        {
            **KUEUE,
            f"{WORKERS}/template/metadata/annotations": {
                "kueue.x-k8s.io/podset-required-topology": "cloud.example.com/rack"
            },
        },
    ),
    "volcano": changed(rayjob(), {"metadata/labels": _VOLCANO}),
    "yunikorn": changed(rayjob(), {"metadata/labels": _YUNIKORN}),
    **{kind: beside(kind) for kind in ("ConfigMap", "Secret", "NetworkPolicy")},
    **{kind: beside(kind) for kind in ("PersistentVolumeClaim", "PodDisruptionBudget")},
}
