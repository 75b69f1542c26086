"""Checks, renders and applies a job on Kubernetes. It applies the objects that `render` prints.

manifests ─▶ the operator's rules ─▶ preflight ─▶ check of the code ─▶ dry run ─▶ kubectl apply
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from clustertrain.errors import ClusterError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.job.site import with_site
from clustertrain.job.yaml_reader import text_of
from clustertrain.launchers.check import check_code, check_loggers
from clustertrain.launchers.kubernetes.dry_run import check_admission
from clustertrain.launchers.kubernetes.kubectl import Forbidden, Kubectl, NoAnswer, NotFound
from clustertrain.launchers.kubernetes.preflight import check_cluster
from clustertrain.launchers.kubernetes.render.manifests import Manifest, manifests, to_json, to_yaml
from clustertrain.launchers.kubernetes.render.paths import in_pods
from clustertrain.launchers.kubernetes.rules.check import check, refusals, to_error
from clustertrain.launchers.kubernetes.state import Observed
from clustertrain.launchers.kubernetes.view import RAYJOBS
from clustertrain.launchers.shell import CommandMissing
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine, typed

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
        JobError, StorageError: as `checked`.
    """
    return to_yaml(checked(with_site(job), options))


def checked(job: Job, options: Options) -> list[Manifest]:
    """The objects of a job, checked by the operator's rules.

    Raises:
        JobError: the job cannot be rendered, or KubeRay would refuse it.
        StorageError: the packed code is too large for a ConfigMap, or cannot be read.
    """
    objects = manifests(job, options)
    findings = check(objects, pod_security=not job.kubernetes.allow_host_path)
    if wrong := refusals(findings):
        raise to_error(wrong)
    return objects


def submit(job: Job, options: Options, echo: Callable[[str], None]) -> Applied:
    """Apply a job that is merged with the site file. An earlier RayJob of the same name is replaced if it is
    over.

    Raises:
        JobError, StorageError: as `checked`.
        ClusterError: kubectl failed, the cluster refuses the job, or an earlier RayJob is not over.
    """
    objects = checked(job, options)
    kubectl = Kubectl.of(job.kubernetes)
    for note in check_cluster(job, objects, kubectl, options.command):
        echo(note)
    if (before := _rayjob(kubectl, job.name)) is not None:
        _check_over(before, options.command)
    check_code(job, echo, elsewhere=True)
    for note in check_admission(objects, kubectl, replaced=before is not None):
        echo(note)
    if before is not None:
        echo(f"RayJob {job.name} is over ({_state(before)}) and is replaced; its storage stays")
        kubectl.delete(RAYJOBS, job.name, _DELETE_S)
    # A client-side apply would write the whole object into an annotation, which has at most 256 KiB.
    kubectl("apply", "--server-side", "--filename=-", input=to_json(objects), timeout_s=_APPLY_S)
    made = kubectl.get(RAYJOBS, job.name)
    namespace = str(made["metadata"]["namespace"])
    return Applied(job.name, namespace, in_pods(job).storage.uri, job.kubernetes.context)


def validate(path: Path, sets: Sequence[str]) -> list[str]:
    """Check a job file, or a file of manifests. Returns notes and a summary.

    The rules of the operator are checked first. If a cluster answers, it checks the objects as well.

    Raises:
        JobError: the file is wrong, or KubeRay would refuse its objects.
        StorageError: as `checked`.
        ClusterError: the cluster refuses an object, or could never start the job.
    """
    documents = _manifests_of(path)
    if documents is not None:
        findings = check(documents)
        if wrong := refusals(findings):
            raise to_error(wrong)
        notes = [f"note: {each.where} {each.message}: older operators refuse it" for each in findings]
        notes += _of_reachable_cluster(_checks_of_documents(documents))
        return [*notes, f"{path}: {len(documents)} objects, none of which KubeRay would refuse"]
    job, command = with_site(load_job(path, sets)), typed("submit --to kubernetes", str(path), sets)
    objects = checked(job, Options())
    notes = [f"note: {text}" for text in check_loggers(job, elsewhere=True)]
    notes += _of_reachable_cluster(_checks_of_job(job, objects, command))
    kinds = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in objects)
    return [*notes, f"{path}: {kinds}: KubeRay would refuse none of them"]


def _of_reachable_cluster(checks: Iterator[str]) -> Iterator[str]:
    """The notes of checks that need a cluster; if it cannot be reached, a note on what was not checked."""
    try:
        yield from checks
    except Forbidden as error:
        yield f"note: the API server did not check the objects: {str(error).splitlines()[0]}"
    except (CommandMissing, NoAnswer) as error:
        left_out = "CRDs, admission webhooks and policies, named objects, capacity"
        yield f"note: not checked with a cluster ({left_out}): {str(error).splitlines()[0]}"


def _checks_of_job(job: Job, objects: Sequence[Manifest], command: CommandLine) -> Iterator[str]:
    kubectl = Kubectl.of(job.kubernetes)
    yield from check_cluster(job, objects, kubectl, command)
    yield from check_admission(objects, kubectl, replaced=_rayjob(kubectl, job.name) is not None)


def _checks_of_documents(documents: Sequence[Manifest]) -> Iterator[str]:
    """Check the objects, except those whose namespace or kind the file itself creates.

    A dry run creates neither, so the server would refuse these objects.
    """
    crds = [each for each in documents if each["kind"] == "CustomResourceDefinition"]
    kinds = {each["spec"]["names"]["kind"] for each in crds}
    namespaces = {each["metadata"].get("name") for each in documents if each["kind"] == "Namespace"}
    sent = [
        each
        for each in documents
        if each["metadata"].get("namespace") not in namespaces and each["kind"] not in kinds
    ]
    if left := len(documents) - len(sent):
        yield f"note: {left} objects were not sent to the cluster: the file creates their namespace or kind"
    yield from check_admission(sent, Kubectl())


def _manifests_of(path: Path) -> list[Manifest] | None:
    """The objects of a file of manifests; None if the file is something else."""
    try:
        documents = [each for each in yaml.safe_load_all(text_of(path)) if each is not None]
    except yaml.YAMLError:
        return None  # the reader of job files reports the position of the error
    is_one = documents and all(isinstance(each, dict) and "apiVersion" in each for each in documents)
    return documents if is_one else None


def what_next(applied: Applied, command: CommandLine) -> str:
    """Where the run is and how to watch it, in three lines; `command` submitted it."""
    folder = f"{applied.storage}/{applied.name}"
    return (
        f"RayJob {applied.name} in namespace {applied.namespace}; the run is in {folder}\n"
        f"watch it: {command.of('status')}\n"
        f"its log:  kubectl -n {applied.namespace} logs -f job/{applied.name}"
    )


def _rayjob(kubectl: Kubectl, name: str) -> Manifest | None:
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
