"""The section `kubernetes` of a job file: settings for Kubernetes.

Workers, CPUs, GPUs and memory are in `resources`, the image is the job's `image`.

Every value ends up in a field of an object, never in text that is parsed. Kubernetes' rules for names and
labels are left to the API server: its dry run refuses a wrong one before anything is applied.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, JsonValue, StrictBool, model_validator

from clustertrain.job.launcher_plugins import LauncherSection
from clustertrain.job.sections import Section
from clustertrain.job.values import Bytes, Count, Refused, Seconds, Text
from clustertrain.launchers.kubernetes.pod_sections import (
    Capability,
    Cidr,
    Egress,
    HeadPod,
    MountedCode,
    NodeResources,
    ObjectName,
    OwnLabelKey,
    ResourceName,
    RunAs,
    Submitter,
    Toleration,
    Volume,
)


class Queue(Section):
    """The queue that admits the run."""

    kind: Literal["kueue", "volcano"] = "kueue"
    """The scheduler of the cluster."""

    name: Text
    """The name of the queue; for Kueue a LocalQueue of the namespace."""

    priority_class: Text | None = None
    """Priority in the queue; for Kueue a WorkloadPriorityClass."""


class Topology(Section):
    """Kueue's topology-aware scheduling: exactly one of the two keys."""

    required: Text | None = None
    """All workers run in one domain of this label; until that is possible the run waits."""

    preferred: Text | None = None
    """All workers run in one domain of this label if possible."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Topology:
        self._exactly_one_of("required", "preferred", example="preferred: topology.kubernetes.io/rack")
        return self


class Kubernetes(LauncherSection):
    """Settings for Kubernetes; other targets ignore them. A site file can set a default for each key."""

    namespace: ObjectName | None = None
    """The namespace of the run. Default: the namespace of kubectl's context."""

    context: Text | None = None
    """The context of kubectl's configuration. Default: the current context."""

    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """The pull policy of the image."""

    pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets for pulling the image."""

    head: HeadPod = HeadPod()
    """The pod of Ray's head."""

    submitter: Submitter = Submitter()
    """The pod that submits the run to Ray, and the pod that reads the storage of an ended run."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that the nodes must have."""

    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes that the pods tolerate."""

    affinity: dict[str, JsonValue] = Field(default_factory=dict)
    """Affinity of the pods, as Kubernetes writes it: `{nodeAffinity: {…}}`."""

    priority_class: ObjectName | None = None
    """PriorityClass of the pods."""

    runtime_class: ObjectName | None = None
    """RuntimeClass of the pods, such as `nvidia`."""

    scheduler_name: ObjectName | None = None
    """The scheduler of the pods. Default: the cluster's default scheduler."""

    labels: dict[OwnLabelKey, str] = Field(default_factory=dict)
    """Labels of every object that is applied, and of every pod. Those of the site file are added."""

    annotations: dict[OwnLabelKey, Text] = Field(default_factory=dict)
    """Annotations of every object that is applied, and of every pod. Those of the site file are added."""

    pod_labels: dict[OwnLabelKey, str] = Field(default_factory=dict)
    """Labels of the pods, in addition to those of clustertrain and KubeRay."""

    pod_annotations: dict[OwnLabelKey, Text] = Field(default_factory=dict)
    """Annotations of the pods."""

    gpus_per_node: Count | None = None
    """GPUs of each node: the number of nodes of a job without `resources.nodes` follows from it. For the site
    file."""

    gpu_resource: ResourceName = "nvidia.com/gpu"
    """The resource that counts GPUs, as `kubectl describe nodes` lists it: `amd.com/gpu`, or a slice of a GPU
    such as `nvidia.com/mig-1g.10gb`. A pod can use one slice only."""

    worker_resources: NodeResources = Field(default_factory=dict)
    """More resources of each worker's pod, both request and limit: devices of the network such as
    `rdma/hca_shared_devices_a: 1` or `vpc.amazonaws.com/efa: 4`, and `hugepages-2Mi: 5120Mi`."""

    worker_annotations: dict[OwnLabelKey, Text] = Field(default_factory=dict)
    """Annotations of the workers' pods only, such as `k8s.v1.cni.cncf.io/networks` for Multus."""

    worker_capabilities: tuple[Capability, ...] = ()
    """Linux capabilities of the workers' containers. `IPC_LOCK` allows RDMA to pin memory, only for root. Pod
    Security `baseline` refuses all of them."""

    host_network: StrictBool = False
    """The workers' pods use the network of their node, with its InfiniBand or RoCE interfaces.
    NetworkPolicies do not apply to them, and Pod Security `baseline` refuses them."""

    node_networks: tuple[Cidr, ...] = ()
    """Ranges of the nodes' addresses, such as `10.0.0.0/16`: with `host_network` the NetworkPolicy admits the
    workers from there. Needed with `host_network`, unless `network_policies` is off."""

    ephemeral_storage_bytes: Bytes | None = Field(default=None, alias="ephemeral_storage")
    """Disk of the node for the head and for each worker's pod, both request and limit. Default: a request of
    1Gi (none in a queue of Kueue), and at most 100Gi in `/tmp` and in the folder of the code."""

    run_as: RunAs = RunAs()
    """User and groups of the pods."""

    service_account: ObjectName | None = None
    """ServiceAccount of the pods. Its token is not mounted."""

    volumes: tuple[Volume, ...] | None = None
    """Volumes of every pod. A relative `storage` is a folder on the first volume. Default: the claim
    `clustertrain` at `/mnt/clustertrain`; no volume if `storage` is on S3."""

    allow_host_path: StrictBool = False
    """Allow `host_path` volumes. Whoever can write to them can take over the node."""

    code_in_image: MountedCode | None = None
    """Folder of the image that contains your code, or a list of folders, in place of `code`. By default
    `code` is sent with the job."""

    secrets: tuple[ObjectName, ...] = ()
    """Secrets whose keys become environment variables of head and workers, such as AWS_ACCESS_KEY_ID.
    clustertrain never reads them."""

    queue: Queue | None = None
    """The queue that admits the run."""

    topology: Topology | None = None
    """Topology-aware scheduling; needs Kueue."""

    start_deadline_s: Seconds = Field(default=900.0, alias="start_deadline")
    """How long the pods may take to start, including image pulls; then the RayJob fails."""

    deadline_s: Seconds | None = Field(default=None, alias="deadline")
    """The time limit of the whole run. Default: no limit."""

    ttl_s: Seconds = Field(default=600.0, alias="ttl")
    """How long the head's pod stays after the end, for inspection; the workers' pods go at once. The storage
    is never deleted."""

    network_policies: StrictBool = True
    """Create a NetworkPolicy that allows only the flows in docs/concepts/security.md. A network plugin must
    enforce it."""

    egress: tuple[Egress, ...] = ()
    """Outgoing traffic that the NetworkPolicy allows as well, such as to a proxy."""

    patches: tuple[dict[str, JsonValue], ...] = ()
    """Changes of the RayJob, for fields without a key here: a JSON patch (RFC 6902), such as
    `[{op: add, path: /spec/…, value: …}]`."""

    @model_validator(mode="after")
    def _consistent(self) -> Kubernetes:
        for index, volume in enumerate(self.volumes or ()):
            if volume.host_path is not None and not self.allow_host_path:
                raise Refused(
                    f"{volume.host_path} is a folder of the node\n"
                    "whoever can write there can take over the node, and Pod Security refuses it\n"
                    "name a claim instead, or set kubernetes.allow_host_path: true",
                    *("volumes", index, "host_path"),
                )
        if self.topology is not None and (self.queue is None or self.queue.kind != "kueue"):
            raise Refused(
                "is given without a queue of Kueue\nonly Kueue places pods by topology\n"
                "add queue: {kind: kueue, name: …}, or remove topology",
                "topology",
            )
        return self

    def with_site(self, site: Self) -> Self:
        """Return this section merged with the section of the site file.

        Labels and annotations of both count; a value of the job file replaces the site's value of the same
        key.
        """
        both = {
            "labels": site.labels | self.labels,
            "annotations": site.annotations | self.annotations,
        }
        return super().with_site(site).model_copy(update=both)

    def may_set(self, variable: str) -> bool:
        return bool(self.secrets)  # what a Secret contains is not known here
