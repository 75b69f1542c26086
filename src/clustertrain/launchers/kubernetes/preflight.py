"""Checks, before anything is applied, for what would keep a run from ever starting on a cluster.

the image           if this machine has it: its labels name the same versions of clustertrain and Ray
named objects       namespace, secrets, claims, classes, accounts and queues exist
capacity            the nodes can hold the pods, and the quotas admit pods and objects

If the account may not read something, its check is left out, with a note. If such a problem keeps the
pods from running, `status` shows it later.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.capacity import (
    Object,
    PodGroup,
    group_of_pod,
    pod_groups_of,
    why_no_nodes,
)
from clustertrain.launchers.kubernetes.kubectl import Forbidden, Kubectl, NotFound
from clustertrain.launchers.kubernetes.pod_sections import Volume
from clustertrain.launchers.kubernetes.quotas import counted, object_counts, why_no_quota
from clustertrain.launchers.kubernetes.render.manifests import Manifest
from clustertrain.launchers.kubernetes.render.paths import storage_volume, volumes
from clustertrain.launchers.kubernetes.render.pods import RUN_LABEL
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.shell import run
from clustertrain.run.command_line import UNKNOWN, CommandLine
from clustertrain.version import RAY_VERSION, __version__

# The labels of an image that have to match, what each names, and its version here.
IMAGE_LABELS = (
    ("io.clustertrain.version", "clustertrain", __version__),
    ("io.clustertrain.ray", "Ray", RAY_VERSION),
)
_ENGINE_S = 20.0
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def check_cluster(
    job: Job, manifests: Sequence[Manifest], kubectl: Kubectl, command: CommandLine = UNKNOWN
) -> list[str]:
    """Refuse a job that the cluster could never start. Returns notes on what could not be checked.

    Args:
        job: merged with the site file.
        manifests: as they will be applied.
        command: what submits the job, for messages.

    Raises:
        CommandMissing: kubectl is not installed.
        NoAnswer: no cluster is configured, or it does not answer.
        ClusterError: the cluster cannot run the job. The message has the reason.
    """
    check_image(job)
    reader = _Reader(kubectl)
    rayjob = next(each for each in manifests if each["kind"] == "RayJob")
    _check_namespace(reader)
    _check_named(job, reader)
    nodes = reader.all("nodes")
    for volume in volumes(job):
        _check_claim(job, volume, reader, len(nodes or ()))
    groups = pod_groups_of(rayjob)
    notes = []
    if why := why_no_nodes(groups, nodes, command) if nodes else None:
        if not job.section(Kubernetes).autoscaled:
            raise ClusterError(why)
        notes.append(f"note: the run waits for new nodes (kubernetes.autoscaled): {why.splitlines()[0]}")
    _check_quotas(job, manifests, groups, reader)
    return [*notes, *reader.notes]


@dataclass
class _Reader:
    """Reads objects that the account may lack the permission for. `forbidden`: what it may not do."""

    kubectl: Kubectl
    forbidden: list[str] = field(default_factory=list)

    def one(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object; None if the account may not read it. Raises NotFound."""
        try:
            return self.kubectl.get(kind, name)
        except Forbidden as error:
            self._leave_out(error)
            return None

    def exists(self, kind: str, name: str) -> bool:
        """Whether an object exists; True if the account may not read it. A secret's data is not printed."""
        try:
            self.kubectl("get", kind, name, "--output=name")
        except NotFound:
            return False
        except Forbidden as error:
            self._leave_out(error)
        return True

    def all(self, kind: str, selector: str = "") -> list[dict[str, Any]] | None:
        """The objects that `selector` selects by labels; None if the account may not list them."""
        try:
            return self.kubectl.list(kind, selector)
        except Forbidden as error:
            self._leave_out(error)
            return None

    def _leave_out(self, error: Forbidden) -> None:
        if error.what not in self.forbidden:
            self.forbidden.append(error.what)

    @property
    def notes(self) -> list[str]:
        if not self.forbidden:
            return []
        return [f"note: not all was checked: this account may not {', may not '.join(self.forbidden)}"]


def _refuse(why: str | None) -> None:
    if why is not None:
        raise ClusterError(why)


# ------------------------------------------------------------------------------------------------ the image


def check_image(job: Job) -> None:
    """Check the versions in the image's labels, if this machine has the image. Pods check them in any case.

    Raises:
        ClusterError: the image is not made from the kit's, or has another version of the kit or of Ray.
    """
    labels = _labels_here(job.image or "")
    if labels is None:
        return
    for key, what, ours in IMAGE_LABELS:
        found = labels.get(key)
        if found is None:
            raise ClusterError(
                f"image: {job.image} has no label {key}: it is not built from clustertrain's image.\n"
                "Build that one with `make image`, and yours FROM it: see docs/docker.md."
            )
        if found != ours:
            raise ClusterError(
                f"image: {job.image} has {what} {found}, and the RayJob needs {what} {ours}.\n"
                "Build the image again with `make image`: the versions must be equal."
            )


def _labels_here(image: str) -> dict[str, str] | None:
    """The labels of an image in podman or docker; None if neither has it."""
    for engine in ("podman", "docker"):
        if shutil.which(engine) is None:
            continue
        argv = [engine, "image", "inspect", "--format={{json .Config.Labels}}", image]
        done = run(argv, timeout_s=_ENGINE_S, check=False)
        if done.code == 0:
            labels: dict[str, str] | None = json.loads(done.stdout)
            return labels or {}
    return None


# --------------------------------------------------------------------------------------------- named objects


def _check_namespace(reader: _Reader) -> None:
    """Refuse a namespace that does not exist. One that the account may not read counts as existing."""
    name = reader.kubectl.namespace
    if name is None:
        return
    try:
        reader.kubectl("get", "namespace", name, "--output=name")
    except NotFound:
        raise ClusterError(
            f"There is no namespace {name}.\n"
            f"kubectl create namespace {name}; or name another one: kubernetes.namespace."
        ) from None
    except Forbidden:
        return


def _check_named(job: Job, reader: _Reader) -> None:
    where = f"namespace {reader.kubectl.namespace}" if reader.kubectl.namespace else "the context's namespace"
    for kind, name, key, remedy in _named(job):
        if not reader.exists(kind, name):
            shown = kind.partition(".")[0]
            raise ClusterError(f"{key} names {name}, and {where} has no such {shown}.\n{remedy}")


def _named(job: Job) -> Iterator[tuple[str, str, str, str]]:
    """Kind, name, the key that names it, and the remedy."""
    section = job.section(Kubernetes)
    make_secret = "kubectl create secret generic {} --from-literal=KEY=… creates it."
    for name in section.secrets:
        yield "secret", name, "kubernetes.secrets", make_secret.format(name)
    for name in section.pull_secrets:
        remedy = f"kubectl create secret docker-registry {name} --docker-server=… --docker-username=…"
        yield "secret", name, "kubernetes.pull_secrets", remedy
    for volume in volumes(job):
        if volume.secret is not None:
            yield "secret", volume.secret, "kubernetes.volumes", make_secret.format(volume.secret)
        if volume.config_map is not None:
            remedy = f"kubectl create configmap {volume.config_map} --from-file=…"
            yield "configmap", volume.config_map, "kubernetes.volumes", remedy
        if volume.storage_class is not None:
            remedy = (
                "`kubectl get storageclass` lists them; without storage_class the cluster's default is used."
            )
            yield "storageclass", volume.storage_class, "kubernetes.volumes: storage_class", remedy
    if section.service_account is not None:
        remedy = f"kubectl create serviceaccount {section.service_account}, or leave it out."
        yield "serviceaccount", section.service_account, "kubernetes.service_account", remedy
    if section.priority_class is not None:
        remedy = "`kubectl get priorityclass` lists them."
        yield "priorityclass", section.priority_class, "kubernetes.priority_class", remedy
    if section.queue is not None and section.queue.kind == "kueue":
        remedy = (
            "`kubectl get localqueue` lists them; without Kueue there is none: leave kubernetes.queue out."
        )
        yield "localqueues.kueue.x-k8s.io", section.queue.name, "kubernetes.queue", remedy


# -------------------------------------------------------------------------------------------------- storage


def _check_claim(job: Job, volume: Volume, reader: _Reader, nodes: int) -> None:
    """Check that a claim exists and serves the pods of all nodes, or that a storage class can provide it."""
    if volume.claim is None:
        return
    try:
        claim = reader.one("persistentvolumeclaim", volume.claim)
    except NotFound:
        if volume.size_bytes is None:
            raise ClusterError(
                f"kubernetes.volumes names the claim {volume.claim}, which does not exist.\n"
                "Add `size: 100Gi`, so that it is created; or create it yourself, as ReadWriteMany."
            ) from None
        if volume.storage_class is None:
            _check_default_class(volume, reader)
        return
    if claim is not None:
        modes = claim["spec"].get("accessModes", [])
        _refuse(why_not_for_all(volume, modes, nodes, writes=volume == storage_volume(job)))


def why_not_for_all(volume: Volume, modes: Sequence[str], nodes: int, *, writes: bool) -> str | None:
    """Why a claim with these access modes cannot serve pods on `nodes` nodes (0: unknown); None if it can.

    ReadWriteOnce restricts a claim to one node, not to one pod. So it is enough on a cluster of one node.
    """
    named = f"Claim {volume.claim} (kubernetes.volumes) is {', '.join(modes)}"
    remedy = (
        "Create a claim with ReadWriteMany, from a storage class that supports it, such as NFS or CephFS."
    )
    if "ReadWriteMany" in modes:
        return None
    if writes and not set(modes) - {"ReadOnlyMany"}:
        return f"{named}, and the run writes its storage there.\n{remedy}"
    if "ReadOnlyMany" in modes and volume.read_only:
        return None
    if "ReadWriteOnce" not in modes:
        return f"{named}: only one pod can mount it, and the head and each worker need it.\n{remedy}"
    if nodes > 1:
        return f"{named}: only one node can mount it, and the pods may run on any of {nodes}.\n{remedy}"
    return None


def _check_default_class(volume: Volume, reader: _Reader) -> None:
    classes = reader.all("storageclasses")
    if classes is None or any(_is_default(each) for each in classes):
        return
    names = ", ".join(str(each["metadata"]["name"]) for each in classes) or "none"
    raise ClusterError(
        f"Claim {volume.claim} (kubernetes.volumes) must be created, and "
        "the cluster has no default storage class.\n"
        f"Name one under storage_class; the cluster has: {names}."
    )


def _is_default(storage_class: Object) -> bool:
    return bool(storage_class["metadata"].get("annotations", {}).get(_DEFAULT_CLASS) == "true")


# --------------------------------------------------------------------------------------------------- quotas


def _check_quotas(
    job: Job, manifests: Sequence[Manifest], groups: Sequence[PodGroup], reader: _Reader
) -> None:
    """Refuse a run that the quotas do not admit. What of it exists already needs no room a second time; if
    the account may not list it, nothing is refused because of it."""
    quotas = reader.all("resourcequotas")
    if not quotas:
        return
    pods = reader.all("pods", f"{RUN_LABEL}={job.name}")
    own = [group_of_pod(pod) for pod in pods or () if _uses_quota(pod)]
    counts, limited = object_counts(manifests), counted(quotas)
    looked_up = {*counts.applied} & limited
    if {*counts.by_operator} & limited:
        looked_up.add("rayjobs.ray.io")
    existing = {key: _existing(job, key, counts.applied[key], reader) for key in looked_up}
    _refuse(why_no_quota(groups if pods is not None else [], quotas, own, counts.new(existing)))


def _existing(job: Job, resource: str, applied: Collection[str], reader: _Reader) -> Collection[str]:
    """The names of the run's objects that exist. A claim belongs to no run, and is found by its name."""
    if resource == "persistentvolumeclaims":
        return [name for name in applied if reader.exists(resource, name)]
    found = reader.all(resource, f"{RUN_LABEL}={job.name}")
    return applied if found is None else [each["metadata"]["name"] for each in found]


def _uses_quota(pod: Object) -> bool:
    """Whether a quota counts the pod. It does not count pods that have ended."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
