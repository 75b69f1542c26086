"""Parts of the section `kubernetes` of a job file: pods, volumes, devices, outgoing traffic.

The rules here are those of no cluster. Names, labels, ports, addresses and tolerations are left to the API
server's dry run.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, model_validator

from clustertrain.job.sections import Section
from clustertrain.job.values import (
    ONE_AS_TEXT,
    Argument,
    Bytes,
    Count,
    CountOrZero,
    Positive,
    Refused,
    Text,
    one_or_several,
    several_folders,
    written_as,
)
from clustertrain.launchers.gpu_slices import is_slice_of_gpu

OWN_FOLDER = "/clustertrain"
"""The folder of the job file and the code in a pod; no volume may be mounted over it."""
_TAKEN_LABELS = tuple(f"app.kubernetes.io/{name}" for name in ("name", "managed-by", "created-by"))
_TAKEN_DOMAINS = (".clustertrain.io", ".ray.io")
_TAKEN_MOUNTS = (OWN_FOLDER, "/tmp", "/dev/shm")


def _own_label_key(text: str) -> str:
    prefix = text.rpartition("/")[0]
    if text in _TAKEN_LABELS or f".{prefix}".endswith(_TAKEN_DOMAINS):
        raise ValueError("must be another key: clustertrain or KubeRay sets this one")
    return text


def _mount(path: str) -> str:
    plain = PurePosixPath(path)
    if not path.startswith("/") or str(plain) != path or ".." in plain.parts or ":" in path or path == "/":
        raise ValueError("must be an absolute folder, such as /mnt/data")
    taken = next((own for own in _TAKEN_MOUNTS if plain.is_relative_to(own)), None)
    if taken is not None:
        raise ValueError(f"must be another folder: every pod of a run has its own {taken}")
    return path


_KEYS_OF_OWN = {
    "cpu": "resources.cpus_per_worker",
    "memory": "resources.memory_per_worker",
    "ephemeral-storage": "kubernetes.ephemeral_storage",
}


def _resource(name: str) -> str:
    if "/" not in name and not name.startswith("hugepages-"):
        raise ValueError("must be DOMAIN/NAME, as `kubectl describe nodes` lists it, such as nvidia.com/gpu")
    return name


def _device(name: str) -> str:
    """Return the name of a resource, or raise ValueError if another key requests that resource."""
    if name in _KEYS_OF_OWN:
        raise ValueError(f"must be a resource without a key of its own\nset {_KEYS_OF_OWN[name]}")
    if name.endswith("gpu") or is_slice_of_gpu(name):
        raise ValueError(
            f"must be no GPU\nset resources.gpus_per_worker, and kubernetes.gpu_resource: {name}"
        )
    return _resource(name)


ObjectName = Annotated[Text, written_as("name")]
OwnLabelKey = Annotated[str, AfterValidator(_own_label_key)]
Cidr = Annotated[str, written_as("range of addresses")]
Mount = Annotated[str, AfterValidator(_mount), written_as("path")]
ResourceName = Annotated[str, AfterValidator(_resource), written_as("name", "nvidia.com/gpu", "amd.com/gpu")]
NodeResources = dict[Annotated[str, AfterValidator(_device)], Argument]
# What a training can need: to pin memory for RDMA, to bind memory to a NUMA node, to be read by a profiler.
Capability = Literal["IPC_LOCK", "SYS_NICE", "SYS_PTRACE"]
MountedCode = Annotated[
    tuple[Mount, ...], AfterValidator(several_folders), one_or_several(Mount), ONE_AS_TEXT
]


class HeadPod(Section):
    """The pod of Ray's head: it runs the driver and Ray's services, and does not train."""

    cpus: Positive = 1.0
    """Its CPU request."""

    cpu_limit: Positive | None = None
    """Its CPU limit. Default: 4 × `cpus`, at least 1, so that it can start faster on free cores."""

    memory_bytes: Bytes = Field(default=4 * 2**30, alias="memory")
    """Its memory, both request and limit."""


class Submitter(Section):
    """The pod that submits the run to Ray, and the pod that reads the storage of an ended run."""

    cpus: Positive = 0.1
    """Its CPU request."""

    cpu_limit: Positive | None = None
    """Its CPU limit. Default: 4 × `cpus`, at least 1."""

    memory_bytes: Bytes = Field(default=2**29, alias="memory")
    """Its memory, both request and limit."""


class RunAs(Section):
    """User and groups of the pods."""

    by: Literal["job", "cluster"] = "job"
    """`cluster`: the pods name no user and no group. The cluster assigns them, as OpenShift does, or those of
    the image count."""

    user: CountOrZero = 1000
    """The user ID. 0 is root, which Pod Security `restricted` refuses."""

    group: CountOrZero = 1000
    """The ID of the primary group."""

    fs_group: CountOrZero = 1000
    """The ID of the group that owns the volumes."""


class Egress(Section):
    """Outgoing traffic of the pods: to a range of addresses, or anywhere."""

    ports: tuple[Count, ...] = Field(min_length=1)
    """TCP ports of the pods or servers at the other end; those of DNS, 53 and 5353, with UDP as well."""

    cidr: Cidr | None = None
    """A range of addresses, such as `10.1.0.0/16`; for pods of the cluster, the range of its pods."""


class Volume(Section):
    """A volume that every pod mounts: exactly one of `claim`, `host_path`, `secret`, `config_map`."""

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

    key: Text | None = None
    """The taint's key. Without it, `operator: Exists` tolerates every taint."""

    operator: Literal["Equal", "Exists"] = "Equal"
    """`Exists` tolerates every value."""

    value: str | None = None
    """The taint's value."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Default: all effects."""
