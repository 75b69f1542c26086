"""Checks, renders and applies a job on Kubernetes. It applies the objects that `render` prints.

nodes for GPUs ─▶ manifests ─▶ the operator's rules ─▶ preflight ─▶ check of the code ─▶ dry run, also of the
pods ─▶ kubectl apply
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.job.references import names_of
from clustertrain.job.site import with_site
from clustertrain.launchers.check import check_code
from clustertrain.launchers.kubernetes.cluster.dry_run import check_admission
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl, NotFound
from clustertrain.launchers.kubernetes.cluster.operator_pods import check_pods
from clustertrain.launchers.kubernetes.cluster.pod_layout import with_nodes
from clustertrain.launchers.kubernetes.cluster.preflight import check_cluster
from clustertrain.launchers.kubernetes.observed.pod_problems import (
    has_running_containers,
    is_terminating,
    name_of,
)
from clustertrain.launchers.kubernetes.observed.state import Observed
from clustertrain.launchers.kubernetes.observed.view import RAYJOBS
from clustertrain.launchers.kubernetes.render.manifests import Manifest, manifests, to_json, to_yaml
from clustertrain.launchers.kubernetes.render.paths import LEAVE_FILE, in_pods
from clustertrain.launchers.kubernetes.render.pods import HEAD_CONTAINER, ROLE_LABEL, RUN_LABEL
from clustertrain.launchers.kubernetes.render.rayjob_rules import check_rayjob
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine

_SET_IN_PODS = ("HOME", "USER", "PATH")
_APPLY_S = 60.0
_DELETE_S = 120.0


@dataclass(frozen=True)
class Applied:
    """A RayJob that was applied. `context`: None for kubectl's current one."""

    name: str
    namespace: str
    storage: str
    context: str | None = None

    @property
    def where(self) -> str:
        context = f" of context {self.context}" if self.context else ""
        return f"Kubernetes namespace {self.namespace}{context}"


def render(job: Job, options: Options = Options()) -> str:  # noqa: B008  it is frozen
    """The YAML that `submit` applies.

    Raises:
        JobError: the job cannot be rendered, or KubeRay would refuse it.
        StorageError: the packed code is too large for a ConfigMap, or cannot be read.
    """
    objects = manifests(with_site(job), options)
    check_rayjob(objects[-1])
    return to_yaml(objects)


def submit(job: Job, options: Options, echo: Callable[[str], None]) -> Applied:
    """Apply a job that is merged with the site file. An earlier RayJob of the same name is replaced if it is
    over.

    Raises:
        JobError, StorageError: as `render`.
        ClusterError: kubectl failed, the cluster refuses the job, or an earlier RayJob is not over.
    """
    kubectl = Kubectl.of(job.section(Kubernetes))
    given = job
    job, layout = with_nodes(job, kubectl)
    if job.world_sizes != given.world_sizes:  # the job file allows all of the given ones
        options = replace(options, allow_world_size_change=True)
    objects = manifests(job, options)
    for note in [*layout, *check_rayjob(objects[-1])]:
        echo(note)
    for note in check_cluster(job, kubectl):
        echo(note)
    if (before := rayjob_of(kubectl, job.name)) is not None:
        _check_over(before, options.command)
    for name, key in names_of(job.env).items():
        if name not in _SET_IN_PODS and not job.section(Kubernetes).secrets:
            echo(f"note: env.{key}: {name} is not sent from here; the image has to set it, or a Secret")
    if not options.no_check:
        check_code(job, echo, command=options.command, elsewhere=True)
    for note in [
        *check_admission(objects, kubectl, replaced=before is not None),
        *check_pods(objects, kubectl),
    ]:
        echo(note)
    if before is not None:
        echo(f"RayJob {job.name} is over ({_state(before)}) and is replaced; its storage stays")
        kubectl.delete(RAYJOBS, job.name, _DELETE_S)
        _end_head(kubectl, job.name)
    # A client-side apply would write the whole object into an annotation, which has at most 256 KiB.
    kubectl("apply", "--server-side", "--filename=-", input=to_json(objects), timeout_s=_APPLY_S)
    made = kubectl.get(RAYJOBS, job.name)
    # The owner's uid exists only now. Server-side apply replaces the owner that an earlier RayJob has left.
    kubectl("apply", "--server-side", "--filename=-", input=to_json(owned(objects, made)), timeout_s=_APPLY_S)
    return _applied(job, made)


def applied(job: Job) -> Applied | None:
    """The RayJob of a job that is merged with the site file, whoever applied it, or None.

    Raises:
        ClusterError: kubectl failed.
    """
    rayjob = rayjob_of(Kubectl.of(job.section(Kubernetes)), job.name)
    is_ours = rayjob is not None and rayjob["metadata"].get("labels", {}).get(RUN_LABEL) == job.name
    return _applied(job, rayjob) if rayjob is not None and is_ours else None


def _applied(job: Job, rayjob: Manifest) -> Applied:
    namespace = str(rayjob["metadata"]["namespace"])
    return Applied(job.name, namespace, in_pods(job).storage.uri, job.section(Kubernetes).context)


def _end_head(kubectl: Kubectl, name: str) -> None:
    """End the head's pod that stays for kubernetes.ttl after the run's end: a quota may have room for one."""
    with contextlib.suppress(ClusterError):  # it is gone by now, or the account may not: it goes by itself
        for pod in kubectl.list("pods", f"{RUN_LABEL}={name},{ROLE_LABEL}=head"):
            if is_terminating(pod) and has_running_containers(pod):
                kubectl.exec(name_of(pod), HEAD_CONTAINER, "touch", LEAVE_FILE)


def what_next(applied: Applied, command: CommandLine) -> str:
    """Where the run is and how to watch it, in three lines; `command` submitted it."""
    folder = f"{applied.storage}/{applied.name}"
    return (
        f"RayJob {applied.name} in namespace {applied.namespace}; the run is in {folder}\n"
        f"watch it: {command.of('status')}\n"
        f"its log:  kubectl -n {applied.namespace} logs -f job/{applied.name}"
    )


def owned(objects: Sequence[Manifest], rayjob: Manifest) -> list[Manifest]:
    """The objects that Kubernetes deletes with the RayJob: all but claims, which have the run's storage."""
    owner = {key: rayjob[key] for key in ("apiVersion", "kind")}
    owner |= {key: rayjob["metadata"][key] for key in ("name", "uid")}
    return [
        {**each, "metadata": {**each["metadata"], "ownerReferences": [owner]}}
        for each in objects
        if each["kind"] not in ("RayJob", "PersistentVolumeClaim")
    ]


def rayjob_of(kubectl: Kubectl, name: str) -> Manifest | None:
    """The RayJob of this name, or None."""
    try:
        return kubectl.get(RAYJOBS, name)
    except NotFound:
        return None


def _check_over(rayjob: Manifest, command: CommandLine) -> None:
    """Refuse to replace a RayJob that is not over."""
    if not Observed(rayjob).is_over:
        raise ClusterError(
            f"RayJob {rayjob['metadata']['name']} exists already: {_state(rayjob)}.\n"
            f"Wait for its end, or stop it with `{command.of('stop')}`."
        )


def _state(rayjob: Manifest) -> str:
    return rayjob.get("status", {}).get("jobDeploymentStatus") or "new"
