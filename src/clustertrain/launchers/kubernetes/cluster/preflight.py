"""Checks, before anything is applied, that the image fits, and that what the job names exists.

the image           if this machine has it: its labels name the same versions of clustertrain and Ray
named objects       namespace, secrets, ConfigMaps, claims and queues exist

If the account may not read something, its check is left out, with a note. Accounts and classes of the pods
are checked by the API server in a dry run. Whether nodes, quotas and storage classes can serve the pods is
not computed here: `submit` prints what the scheduler and the API server say.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Forbidden, Kubectl, NotFound
from clustertrain.launchers.kubernetes.keys.pod_sections import Volume
from clustertrain.launchers.kubernetes.render.paths import storage_volume, volumes
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.shell import run
from clustertrain.version import RAY_VERSION, __version__

# The labels of an image that have to match, what each names, and its version here.
IMAGE_LABELS = (
    ("io.clustertrain.version", "clustertrain", __version__),
    ("io.clustertrain.ray", "Ray", RAY_VERSION),
)
_ENGINE_S = 20.0


def check_cluster(job: Job, kubectl: Kubectl) -> list[str]:
    """Refuse a job with another image, or that names what is not there. Returns notes on the rest.

    Args:
        job: merged with the site file.

    Raises:
        CommandMissing: kubectl is not installed.
        Unanswered: no cluster is configured, or it does not answer.
        ClusterError: the cluster cannot run the job. The message has the reason.
    """
    check_image(job)
    left_out: dict[str, None] = {}
    for kind, name, missing in _named(job, kubectl.namespace):
        with _unless_forbidden(left_out):
            try:
                kubectl("get", kind, name, "--output=name")  # prints no secret's data
            except NotFound:
                raise ClusterError(missing) from None
    left_out.pop("get namespaces", None)  # one that the account may not read counts as existing
    for volume in volumes(job):
        if volume.claim is not None:
            with _unless_forbidden(left_out):
                _check_claim(job, volume, kubectl, left_out)
    return (
        [f"note: not all was checked: this account may not {', may not '.join(left_out)}"] if left_out else []
    )


@contextmanager
def _unless_forbidden(left_out: dict[str, None]) -> Iterator[None]:
    """Leave a check out, with a note, for which the account lacks a permission."""
    try:
        yield
    except Forbidden as error:
        left_out[error.what] = None


# ------------------------------------------------------------------------------------------------ the image


def check_image(job: Job) -> None:
    """Check the versions in the image's labels, if this machine has the image. Pods check them in any case.

    Raises:
        ClusterError: the image is not made from clustertrain's, or has another version of it or of Ray.
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
    """The labels of an image in podman or docker, or None if neither has it."""
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


def _named(job: Job, namespace: str | None) -> Iterator[tuple[str, str, str]]:
    """Kind and name of what the job names, and the error if it is missing."""
    section = job.section(Kubernetes)
    if namespace is not None:
        remedy = f"kubectl create namespace {namespace}; or name another one: kubernetes.namespace."
        yield "namespace", namespace, f"There is no namespace {namespace}.\n{remedy}"
    where = f"namespace {namespace}" if namespace else "the context's namespace"

    def missing(kind: str, name: str, key: str, remedy: str) -> tuple[str, str, str]:
        shown = kind.partition(".")[0]
        return kind, name, f"{key} names {name}, and {where} has no such {shown}.\n{remedy}"

    secrets = [("kubernetes.secrets", name) for name in section.secrets]
    secrets += [("kubernetes.volumes", each.secret) for each in volumes(job) if each.secret is not None]
    for key, name in secrets:
        yield missing(
            "secret", name, key, f"kubectl create secret generic {name} --from-literal=KEY=… creates it."
        )
    for name in section.pull_secrets:
        remedy = f"kubectl create secret docker-registry {name} --docker-server=… --docker-username=…"
        yield missing("secret", name, "kubernetes.pull_secrets", remedy)
    for name in (each.config_map for each in volumes(job) if each.config_map is not None):
        remedy = f"kubectl create configmap {name} --from-file=…"
        yield missing("configmap", name, "kubernetes.volumes", remedy)
    if section.queue is not None and section.queue.kind == "kueue":
        remedy = (
            "`kubectl get localqueue` lists them; without Kueue there is none: leave kubernetes.queue out."
        )
        yield missing("localqueues.kueue.x-k8s.io", section.queue.name, "kubernetes.queue", remedy)


# -------------------------------------------------------------------------------------------------- storage


def _check_claim(job: Job, volume: Volume, kubectl: Kubectl, left_out: dict[str, None]) -> None:
    """Check that a claim exists and serves the pods of all nodes, or is to be created."""
    try:
        claim = kubectl.get("persistentvolumeclaim", volume.claim or "")
    except NotFound:
        if volume.size_bytes is None:
            raise ClusterError(
                f"kubernetes.volumes names the claim {volume.claim}, which does not exist.\n"
                "Add `size: 100Gi`, so that it is created; or create it yourself, as ReadWriteMany."
            ) from None
        return
    nodes = 0
    with _unless_forbidden(left_out):
        nodes = len(kubectl.list("nodes"))
    modes, writes = claim["spec"].get("accessModes", []), volume == storage_volume(job)
    if (why := why_not_for_all(volume, modes, nodes, writes=writes)) is not None:
        raise ClusterError(why)


def why_not_for_all(volume: Volume, modes: Sequence[str], nodes: int, *, writes: bool) -> str | None:
    """Why a claim with these access modes cannot serve pods on `nodes` nodes (0: unknown), or None if it can.

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
