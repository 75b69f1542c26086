"""The section `kubernetes` of a job file: what only Kubernetes has. Workers, CPUs, GPUs and memory are in
`resources`, the image is the job's one `image`.

Every value ends up in a field of an object, never in text that something parses: the rules here are
Kubernetes' own for names, so that a wrong one is refused before a cluster is asked.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, StrictBool, model_validator

from clustertrain.job.sections import Section
from clustertrain.job.values import Bytes, CountOrZero, Positive, Refused, Seconds, Text, written_as

KIT_FOLDER = "/clustertrain"
"""Where a pod finds the job file and the code: no volume may hide it."""
_TAKEN_MOUNTS = (KIT_FOLDER, "/tmp", "/dev/shm")


def _label(text: str) -> str:
    if _is_label(text):
        return text
    raise ValueError("must be 1 to 63 of a-z, 0-9 and '-', from a letter or digit to a letter or digit")


def _object_name(text: str) -> str:
    if len(text) <= 253 and all(map(_is_label, text.split("."))):
        return text
    raise ValueError("must be the name of an object: a-z, 0-9, '-' and '.', from a letter or digit to one")


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
        raise ValueError(f"must be another folder: {taken} is what every pod of a run has for itself")
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
WholeSeconds = Annotated[Seconds, AfterValidator(_grace)]


class Head(Section):
    """The pod of Ray's head, which trains nothing: the driver, and Ray's own services."""

    cpus: Positive = 1.0
    """CPU cores that it is promised; it may use more that are free, since it starts before all others."""

    memory_bytes: Bytes = Field(default=4 * 2**30, alias="memory")
    """Its memory, promised and allowed."""


class Volume(Section):
    """Storage that every pod of the run sees at one path: exactly one of the four kinds."""

    mount: Mount
    """Where it is in the pods, such as `/mnt/data`."""

    claim: ObjectName | None = None
    """A PersistentVolumeClaim of the namespace; ReadWriteMany where pods of several nodes write to it."""

    size_bytes: Bytes | None = Field(default=None, alias="size")
    """Make that claim, of this size, ReadWriteMany, unless it is there. It stays when the run is deleted."""

    storage_class: ObjectName | None = None
    """Of the claim that is made; left out, the cluster's default."""

    host_path: Mount | None = None
    """A folder of each node. Pod Security `restricted` and `baseline` refuse it, and so does the kit unless
    `allow_host_path` is set."""

    secret: ObjectName | None = None
    """A Secret, each key of it a file."""

    config_map: ObjectName | None = None
    """A ConfigMap, each key of it a file."""

    read_only: StrictBool = False
    """Nothing can be written to it; a Secret and a ConfigMap never can be."""

    @model_validator(mode="after")
    def _one_kind(self) -> Volume:
        self._exactly_one_of("claim", "host_path", "secret", "config_map", example="claim: shared")
        for key in ("size_bytes", "storage_class"):
            if getattr(self, key) is not None and (self.claim is None or self.size_bytes is None):
                what = "claim" if self.claim is None else "size"
                raise Refused(
                    f"stands without {what}\nit is for a claim that the kit makes, with a size",
                    "size" if key == "size_bytes" else key,
                )
        return self


class Toleration(Section):
    """A taint of nodes that the pods may run on all the same."""

    key: LabelKey | None = None
    """The taint's key; left out, with `operator: Exists`, every taint."""

    operator: Literal["Equal", "Exists"] = "Equal"
    """`Exists`: whatever its value."""

    value: LabelValue | None = None
    """The taint's value."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; left out, each."""

    @model_validator(mode="after")
    def _exists_has_no_value(self) -> Toleration:
        if self.operator == "Exists" and self.value is not None:
            raise Refused("stands beside operator Exists\nthat one asks for no value: leave one out", "value")
        if self.operator == "Equal" and self.key is None:
            raise Refused("none is given\nonly operator: Exists takes every taint", "key")
        return self


class Queue(Section):
    """Who decides when the run may start."""

    kind: Literal["kueue", "volcano", "yunikorn"] = "kueue"
    """The scheduler that the cluster has."""

    name: LabelValue
    """Its queue: a LocalQueue of the namespace for Kueue."""

    priority_class: LabelValue | None = None
    """Priority in the queue: a WorkloadPriorityClass for Kueue."""


class Topology(Section):
    """Pods near each other; Kueue's topology-aware scheduling. One of the two."""

    required: LabelKey | None = None
    """All workers in one domain of this label, or the run waits."""

    preferred: LabelKey | None = None
    """All workers in one domain of this label where that is possible."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Topology:
        self._exactly_one_of("required", "preferred", example="preferred: topology.kubernetes.io/rack")
        return self


class Kubernetes(Section):
    """What only Kubernetes has; other targets leave it alone. A site file gives defaults, key by key."""

    namespace: LabelName | None = None
    """Where it runs. Left out: the namespace of kubectl's context."""

    context: Text | None = None
    """The context of kubectl's configuration. Left out: the current one."""

    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When the image is fetched."""

    pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets with which the image is fetched."""

    head: Head = Head()
    """The pod of Ray's head."""

    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels that nodes must have."""

    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes that the pods may run on all the same."""

    priority_class: ObjectName | None = None
    """PriorityClass of the pods."""

    service_account: ObjectName | None = None
    """Whom the pods run as. They are given no token of it."""

    volumes: tuple[Volume, ...] | None = None
    """What every pod sees. A `storage` that is on none of them, such as `runs`, becomes the folder of that
    name on the first one. Left out: the claim `clustertrain` at `/mnt/clustertrain`, and none where `storage`
    is on S3."""

    allow_host_path: StrictBool = False
    """Folders of nodes may be volumes. Whoever can write there owns the node."""

    code_in_image: Mount | None = None
    """Folder of the image that holds your code. Left out, the folder `code` travels with the job."""

    secrets: tuple[ObjectName, ...] = ()
    """Secrets whose keys become variables of head and workers, such as AWS_ACCESS_KEY_ID. Named here, never
    read by the kit."""

    queue: Queue | None = None
    """Who decides when the run may start."""

    topology: Topology | None = None
    """Pods near each other; for Kueue."""

    submission_mode: Literal["K8sJobMode", "HTTPMode", "SidecarMode"] = "K8sJobMode"
    """How KubeRay hands the run to Ray: by a pod of its own, by the operator, or from within the head's pod,
    where the loss of the head ends the run."""

    start_deadline_s: WholeSeconds = Field(default=900.0, alias="start_deadline")
    """How long the pods may take to come up, images included; then the RayJob fails. With `backoff_limit` it
    is tried again: the end comes after (backoff_limit + 1) × start_deadline."""

    deadline_s: WholeSeconds | None = Field(default=None, alias="deadline")
    """How long the run may take in all. Left out: for ever."""

    ttl_s: WholeSeconds = Field(default=600.0, alias="ttl")
    """How long the pods stay after the end, for a look at them; storage stays for good."""

    backoff_limit: CountOrZero = 0
    """New Ray clusters that KubeRay makes after a failure. The kit restarts workers by itself, and a lost
    head comes back in the same cluster: this counts every failure, also one that comes again."""

    network_policies: StrictBool = True
    """Allow the flows of docs/security.md, and no other. It takes a network plugin that enforces them."""

    disruption_budget: StrictBool = False
    """Make a PodDisruptionBudget: nobody can drain a node under the run, who does not delete its pods."""

    patches: dict[str, JsonValue] = Field(default_factory=dict)
    """A JSON merge patch for the RayJob, for what has no key here: `{spec: {…}}`; null removes a field."""

    @model_validator(mode="after")
    def _consistent(self) -> Kubernetes:
        _check_volumes(self)
        if self.topology is not None and (self.queue is None or self.queue.kind != "kueue"):
            raise Refused(
                "stands without a queue of Kueue\nonly Kueue places pods by topology\n"
                "add queue: {kind: kueue, name: …}, or leave topology out",
                "topology",
            )
        return self


def _check_volumes(section: Kubernetes) -> None:
    seen: dict[str, int] = {}
    for index, volume in enumerate(section.volumes or ()):
        if volume.mount in seen:
            raise Refused(
                f"is mounted twice: {volume.mount}\neach volume has a folder of its own",
                "volumes",
                index,
                "mount",
            )
        seen[volume.mount] = index
        if volume.host_path is not None and not section.allow_host_path:
            raise Refused(
                f"{volume.host_path} is a folder of the node\n"
                "whoever can write there owns the node, and Pod Security refuses it\n"
                "name a claim instead, or set kubernetes.allow_host_path: true",
                "volumes",
                index,
                "host_path",
            )


def merged_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: mappings are merged key by key, null removes a key, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merged_patch(merged.get(key), value)
    return merged
