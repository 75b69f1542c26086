"""Checks, before anything is applied, that what the job names exists: namespace, secrets, ConfigMaps, claims
and queues.

If the account may not read something, its check is left out, with a note. Accounts and classes of the pods
are checked by the API server in a dry run. Whether nodes, quotas and storage classes can serve the pods is
not computed here: `submit` prints what the scheduler and the API server say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Forbidden, Kubectl, NotFound
from clustertrain.launchers.kubernetes.cluster.node_room import eligible_nodes
from clustertrain.launchers.kubernetes.keys.pod_sections import Volume
from clustertrain.launchers.kubernetes.render.paths import PodJob, volumes
from clustertrain.launchers.kubernetes.render.pods import common_fields
from clustertrain.launchers.kubernetes.section import Kubernetes


def check_cluster(job: Job, kubectl: Kubectl) -> list[str]:
    """Refuse a job that names what is not there. Returns notes on what was not checked.

    Args:
        job: merged with the site file.

    Raises:
        CommandMissing: kubectl is not installed.
        Unanswered: no cluster is configured, or it does not answer.
        ClusterError: the cluster cannot run the job. The message has the reason.
    """
    left_out: dict[str, None] = {}
    for kind, name, missing in _named(job, kubectl):
        with _unless_forbidden(left_out):
            try:
                kubectl("get", kind, name, "--output=name")  # prints no secret's data
            except NotFound:
                raise ClusterError(missing) from None
    left_out.pop("get namespaces", None)  # one that the account may not read counts as existing
    for volume in volumes(job):
        if volume.claim is not None:
            with _unless_forbidden(left_out):
                _check_claim(volume, job, kubectl, left_out)
    return [f"not all was checked: this account may not {', may not '.join(left_out)}"] if left_out else []


@contextmanager
def _unless_forbidden(left_out: dict[str, None]) -> Iterator[None]:
    """Leave a check out, with a note, for which the account lacks a permission."""
    try:
        yield
    except Forbidden as error:
        left_out[error.what] = None


# --------------------------------------------------------------------------------------------- named objects

_SECRET_REMEDY = "{kubectl} create secret generic {name} --from-literal=KEY=… creates it."
_PULL_SECRET_REMEDY = "{kubectl} create secret docker-registry {name} --docker-server=… --docker-username=…"
_CONFIG_MAP_REMEDY = "{kubectl} create configmap {name} --from-file=…"
_QUEUE_REMEDY = (
    "`{kubectl} get localqueue` lists them; without Kueue there is none: leave kubernetes.queue out."
)


def _named(job: Job, kubectl: Kubectl) -> Iterator[tuple[str, str, str]]:
    """Kind and name of what the job names, and the error if it is missing."""
    section, namespace = job.section(Kubernetes), kubectl.namespace
    if namespace is not None:
        remedy = f"{kubectl.typed} create namespace {namespace}; or name another one: kubernetes.namespace."
        yield "namespace", namespace, f"There is no namespace {namespace}.\n{remedy}"
    where = f"namespace {namespace}" if namespace else "the context's namespace"

    mounted, queue = volumes(job), section.queue
    queues = [queue.name] if queue is not None and queue.kind == "kueue" else []
    for kind, key, names, remedy in (
        ("secret", "kubernetes.secrets", section.secrets, _SECRET_REMEDY),
        ("secret", "kubernetes.volumes", [volume.secret for volume in mounted], _SECRET_REMEDY),
        ("secret", "kubernetes.pull_secrets", section.pull_secrets, _PULL_SECRET_REMEDY),
        ("configmap", "kubernetes.volumes", [volume.config_map for volume in mounted], _CONFIG_MAP_REMEDY),
        ("localqueues.kueue.x-k8s.io", "kubernetes.queue", queues, _QUEUE_REMEDY),
    ):
        for name in names:
            if name is None:  # a volume of another kind
                continue
            text = f"{key} names {name}, and {where} has no such {kind.partition('.')[0]}."
            yield kind, name, f"{text}\n{remedy.format(kubectl=kubectl.typed, name=name)}"


# -------------------------------------------------------------------------------------------------- storage


def _check_claim(volume: Volume, job: Job, kubectl: Kubectl, left_out: dict[str, None]) -> None:
    """Check that a claim exists and serves the pods of all nodes, or is to be created."""
    claim = kubectl.find("persistentvolumeclaim", volume.claim or "")
    if claim is None:
        if volume.size_bytes is None:
            raise ClusterError(
                f"kubernetes.volumes names the claim {volume.claim}, which does not exist.\n"
                "Add `size: 100Gi`, so that it is created; or create it yourself, as ReadWriteMany."
            )
        return
    modes, nodes = {*claim["spec"].get("accessModes", [])}, 0
    with _unless_forbidden(left_out):
        nodes = len(eligible_nodes(common_fields(PodJob.of(job)), kubectl.list("nodes")))
    enough = {"ReadWriteMany", *(["ReadOnlyMany"] if volume.read_only else [])}
    if nodes <= 1:  # ReadWriteOnce restricts a claim to one node, not to one pod
        enough.add("ReadWriteOnce")
    if not modes & enough:
        raise ClusterError(
            f"Claim {volume.claim} (kubernetes.volumes) is {', '.join(sorted(modes))}, and the head and each "
            "worker mount it, on any node.\nCreate a claim with ReadWriteMany, from a storage class that "
            "supports it, such as NFS or CephFS; or name one node by its label: kubernetes.node_selector."
        )
