"""The section `kubernetes` of a job file: settings for Kubernetes. Workers, CPUs, GPUs and memory are in
`resources`, the image is the job's `image`.

Every value ends up in a field of an object, never in text that is parsed. The rules here are Kubernetes'
rules for names, so that a wrong value is refused before any request to a cluster.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, StrictBool, model_validator

from clustertrain.job.sections import Section
from clustertrain.job.values import (
    ONE_AS_TEXT,
    Bytes,
    CountOrZero,
    Positive,
    Refused,
    Seconds,
    Text,
    one_or_several,
    several_folders,
    written_as,
)

KIT_FOLDER = "/clustertrain"
"""The folder of the job file and the code in a pod; no volume may be mounted over it."""
_TAKEN_MOUNTS = (KIT_FOLDER, "/tmp", "/dev/shm")


def _label(text: str) -> str:
    if _is_label(text):
        return text
    raise ValueError("must be 1 to 63 of a-z, 0-9 and '-', and start and end with a letter or digit")


def _object_name(text: str) -> str:
    if len(text) <= 253 and all(map(_is_label, text.split("."))):
        return text
    raise ValueError(
        "must be an object's name: a-z, 0-9, '-' and '.'; it starts and ends with a letter or digit"
    )


def _is_label(text: str) -> bool:
    return re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text) is not None


def _label_key(text: str) -> str:
    prefix, slash, name = text.rpartition("/")
    if (slash and not _object_name(prefix)) or not re.fullmatch(
        r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", name
    ):
        raise ValueError("must be the key of a label, such as topology.kubernetes.io/zone")
    return text


def _label_value(text: str) -> str:
    if re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", text):
        return text
    raise ValueError("must be the value of a label: up to 63 letters, digits, '-', '_' and '.'")


def _mount(path: str) -> str:
    plain = PurePosixPath(path)
    if not path.startswith("/") or str(plain) != path or ".." in plain.parts or ":" in path or path == "/":
        raise ValueError("must be an absolute folder, such as /mnt/data")
    taken = next((own for own in _TAKEN_MOUNTS if plain.is_relative_to(own)), None)
    if taken is not None:
        raise ValueError(f"must be another folder: every pod of a run has its own {taken}")
    return path


def _grace(seconds: float) -> float:
    if seconds < 1:
        raise ValueError("must be at least 1s: the operator counts whole seconds")
    return seconds


LabelName = Annotated[str, AfterValidator(_label), written_as("name")]
ObjectName = Annotated[str, AfterValidator(_object_name), written_as("name")]
LabelKey = Annotated[str, AfterValidator(_label_key)]
LabelValue = Annotated[str, AfterValidator(_label_value)]
Mount = Annotated[str, AfterValidator(_mount), written_as("path")]
MountedCode = Annotated[
    tuple[Mount, ...], AfterValidator(several_folders), one_or_several(Mount), ONE_AS_TEXT
]
WholeSeconds = Annotated[Seconds, AfterValidator(_grace)]


class Head(Section):
    """The pod of Ray's head: it runs the driver and Ray's services, and does not train."""

    cpus: Positive = 1.0
    """Its CPU request. It has no CPU limit, so that it can start faster on free cores."""

    memory_bytes: Bytes = Field(default=4 * 2**30, alias="memory")
    """Its memory, both request and limit."""


class Volume(Section):
    """A volume that every pod of the run mounts: exactly one of `claim`, `host_path`, `secret`,
    `config_map`."""

    mount: Mount
    """Its path in the pods, such as `/mnt/data`."""

    claim: ObjectName | None = None
    """A PersistentVolumeClaim of the namespace; ReadWriteMany if pods on several nodes write to it."""

    size_bytes: Bytes | None = Field(default=None, alias="size")
    """Create that claim with this size, ReadWriteMany, unless it exists. It stays when the run is deleted."""

    storage_class: ObjectName | None = None
    """StorageClass of the created claim. Default: the cluster's default."""

    host_path: Mount | None = None
    """A folder of each node. Pod Security `restricted` and `baseline` refuse it; clustertrain refuses it too,
    unless `allow_host_path` is set."""

    secret: ObjectName | None = None
    """A Secret; each of its keys is a file."""

    config_map: ObjectName | None = None
    """A ConfigMap; each of its keys is a file."""

    read_only: StrictBool = False
    """Mount it read-only; a Secret and a ConfigMap always are."""

    @model_validator(mode="after")
    def _one_kind(self) -> Volume:
        self._exactly_one_of("claim", "host_path", "secret", "config_map", example="claim: shared")
        for key in ("size_bytes", "storage_class"):
            if getattr(self, key) is not None and (self.claim is None or self.size_bytes is None):
                what = "claim" if self.claim is None else "size"
                raise Refused(
                    f"is given without {what}\nit is for a claim that clustertrain creates, with a size",
                    "size" if key == "size_bytes" else key,
                )
        return self


class Toleration(Section):
    """A taint of nodes that the pods tolerate."""

    key: LabelKey | None = None
    """The taint's key. Without it, `operator: Exists` tolerates every taint."""

    operator: Literal["Equal", "Exists"] = "Equal"
    """`Exists` tolerates every value."""

    value: LabelValue | None = None
    """The taint's value."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Default: all effects."""

    @model_validator(mode="after")
    def _exists_has_no_value(self) -> Toleration:
        if self.operator == "Exists" and self.value is not None:
            raise Refused("is given with operator Exists\nExists has no value: remove one of them", "value")
        if self.operator == "Equal" and self.key is None:
            raise Refused("is missing\nonly operator: Exists works without a key", "key")
        return self


class Queue(Section):
    """The queue that admits the run."""

    kind: Literal["kueue", "volcano", "yunikorn"] = "kueue"
    """The scheduler of the cluster."""

    name: LabelValue
    """The name of the queue; for Kueue a LocalQueue of the namespace."""

    priority_class: LabelValue | None = None
    """Priority in the queue; for Kueue a WorkloadPriorityClass."""


class Topology(Section):
    """Kueue's topology-aware scheduling: exactly one of the two keys."""

    required: LabelKey | None = None
    """All workers run in one domain of this label; until that is possible the run waits."""

    preferred: LabelKey | None = None
    """All workers run in one domain of this label if possible."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Topology:
        self._exactly_one_of("required", "preferred", example="preferred: topology.kubernetes.io/rack")
        return self


class Kubernetes(Section):
    """Settings for Kubernetes; other targets ignore them. A site file can set a default for each key."""

    namespace: LabelName | None = None
    """The namespace of the run. Default: the namespace of kubectl's context."""

    context: Text | None = None
    """The context of kubectl's configuration. Default: the current context."""

    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """The pull policy of the image."""

    pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets for pulling the image."""

    head: Head = Head()
    """The pod of Ray's head."""

    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels that the nodes must have."""

    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes that the pods tolerate."""

    priority_class: ObjectName | None = None
    """PriorityClass of the pods."""

    service_account: ObjectName | None = None
    """ServiceAccount of the pods. Its token is not mounted."""

    volumes: tuple[Volume, ...] | None = None
    """Volumes of every pod. A `storage` that is on none of them, such as `runs`, is the folder of that name
    on the first volume. Default: the claim `clustertrain` at `/mnt/clustertrain`; no volume if `storage` is
    on S3."""

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

    submission_mode: Literal["K8sJobMode", "HTTPMode", "SidecarMode"] = "K8sJobMode"
    """How KubeRay submits the run to Ray: by a separate pod, by the operator, or from a container in the
    head's pod. With the last, the loss of the head ends the run."""

    start_deadline_s: WholeSeconds = Field(default=900.0, alias="start_deadline")
    """How long the pods may take to start, including image pulls; then the RayJob fails. With `backoff_limit`
    it is retried and ends after (backoff_limit + 1) × start_deadline."""

    deadline_s: WholeSeconds | None = Field(default=None, alias="deadline")
    """The time limit of the whole run. Default: no limit."""

    ttl_s: WholeSeconds = Field(default=600.0, alias="ttl")
    """How long the pods stay after the end, for inspection. The storage is never deleted."""

    backoff_limit: CountOrZero = 0
    """How many new Ray clusters KubeRay creates after failures. clustertrain restarts workers itself, and a
    lost head is replaced in the same cluster. The limit counts every failure, also a permanent one."""

    network_policies: StrictBool = True
    """Allow only the network flows in docs/security.md. This needs a network plugin that enforces them."""

    disruption_budget: StrictBool = False
    """Create a PodDisruptionBudget. A node can then only be drained after the run's pods are deleted."""

    patches: dict[str, JsonValue] = Field(default_factory=dict)
    """A JSON merge patch for the RayJob, for fields without a key here: `{spec: {…}}`; null removes a
    field."""

    @model_validator(mode="after")
    def _consistent(self) -> Kubernetes:
        _check_volumes(self)
        if self.topology is not None and (self.queue is None or self.queue.kind != "kueue"):
            raise Refused(
                "is given without a queue of Kueue\nonly Kueue places pods by topology\n"
                "add queue: {kind: kueue, name: …}, or remove topology",
                "topology",
            )
        return self


def _check_volumes(section: Kubernetes) -> None:
    seen: dict[str, int] = {}
    for index, volume in enumerate(section.volumes or ()):
        if volume.mount in seen:
            raise Refused(
                f"is used twice: {volume.mount}\neach volume needs its own folder",
                "volumes",
                index,
                "mount",
            )
        seen[volume.mount] = index
        if volume.host_path is not None and not section.allow_host_path:
            raise Refused(
                f"{volume.host_path} is a folder of the node\n"
                "whoever can write there can take over the node, and Pod Security refuses it\n"
                "name a claim instead, or set kubernetes.allow_host_path: true",
                "volumes",
                index,
                "host_path",
            )


def merged_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: mappings are merged key by key, null removes a key, every other value replaces the old
    one."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merged_patch(merged.get(key), value)
    return merged
