"""Kubernetes as a scheduler: RayJobs are planned, checked, applied and asked for.

manifests ─▶ the API server's dry run ─▶ kubectl apply
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import yaml

from clustertrain.errors import ClusterError
from clustertrain.job.references import names_of
from clustertrain.job.site import SiteJob
from clustertrain.launchers.kubernetes.cluster.dry_run import check_admission
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl, words_of
from clustertrain.launchers.kubernetes.observed.first_word import first_word
from clustertrain.launchers.kubernetes.observed.pods import is_terminating, name_of
from clustertrain.launchers.kubernetes.observed.state import Observed, RayJobState
from clustertrain.launchers.kubernetes.observed.view import RAYJOBS
from clustertrain.launchers.kubernetes.render.manifests import Manifest, manifests, to_json, to_yaml
from clustertrain.launchers.kubernetes.render.paths import LEAVE_FILE, PodJob
from clustertrain.launchers.kubernetes.render.pods import HEAD_CONTAINER, ROLE_LABEL, RUN_LABEL
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.scheduler.interface import Answer, Handle, Plan, Scheduler
from clustertrain.launchers.shell import Unanswered
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine

OUR_LABEL = "app.kubernetes.io/managed-by=clustertrain"
_DELETED_WITH_IT = "configmaps", "networkpolicies.networking.k8s.io"
_SET_IN_PODS = ("HOME", "USER", "PATH")
_APPLY_S = 60.0
_DELETE_S = 300.0  # the pods may save first
# A client-side apply would write the whole object into an annotation, which has at most 256 KiB.
_APPLY = ("apply", "--server-side", "--filename=-")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in Python a second and a half for 900 kB of code


class KubernetesScheduler(Scheduler):
    """The clusters of kubectl's configuration.

    The ID of a job is the name of its RayJob, so the jobs of one query are in one namespace.
    """

    name = "kubernetes"
    label = "Kubernetes"
    job_word = "RayJob"
    reads_storage = False

    def cluster_text(self, handle: Handle) -> str:
        return f"{self.label} {handle.cluster}"

    def plan(self, job: SiteJob, options: Options) -> Plan:
        objects = manifests(job, options)
        names = tuple(f"{each['kind']} {each['metadata']['name']}" for each in objects)
        return Plan(to_yaml(objects).encode(), ("kubectl", *_APPLY), objects=names)

    def preflight(self, job: SiteJob, plan: Plan, command: CommandLine) -> Iterator[str]:
        kubectl = Kubectl.of(job)
        for name, key in names_of(job.start_texts).items():
            if name not in _SET_IN_PODS and not job.section(Kubernetes).secrets:
                yield f"{key}: {name} is not sent from here; the image has to set it, or a Secret"
        is_replaced = kubectl.find(RAYJOBS, job.name) is not None
        yield from check_admission(_objects(plan, kubectl), kubectl, replaced=is_replaced)

    def submit(self, job: SiteJob, plan: Plan, submission: str, command: CommandLine) -> Handle:
        """Apply the objects of the plan, which contain the job and its code.

        An earlier RayJob of the same name is replaced if it is over.
        """
        kubectl, printed = Kubectl.of(job), []
        objects = _objects(plan, kubectl)
        if (before := kubectl.find(RAYJOBS, job.name)) is not None:
            _check_over(before, command)
            printed.append(
                f"RayJob {job.name} is over ({Observed(before).summary}) and is replaced; its storage stays"
            )
            kubectl.delete(RAYJOBS, job.name, _DELETE_S)
            _end_head(kubectl, job.name)
        kubectl(*_APPLY, input=to_json(objects), timeout_s=_APPLY_S)
        made = json.loads(kubectl("get", RAYJOBS, job.name, "--output=json").stdout)
        # The owner's uid exists only now. Server-side apply replaces the owner that an earlier one has left.
        kubectl(*_APPLY, input=to_json(owned(objects, made)), timeout_s=_APPLY_S)
        handle = handle_of(job, made)
        return replace(handle, printed=(*printed, f"the run is in {handle.storage}/{job.name}"))

    def pinned(self, job: SiteJob, handle: Handle) -> SiteJob:
        """Return the job with the context and namespace of kubectl's configuration at the submission."""
        there = {"namespace": handle.namespace or None, "context": handle.context or None}
        section = job.section(Kubernetes).model_copy(update=there)
        return SiteJob(job.model_copy(update={"kubernetes": section}))

    def first_word(self, job: SiteJob) -> str:
        return first_word(job)

    def states(self, jobs: Sequence[Handle]) -> Answer:
        try:
            rayjobs = _kubectl_of(jobs[0]).list(RAYJOBS, OUR_LABEL)
        except ClusterError as error:
            return Answer({}, words_of(error))
        observed = {name_of(rayjob): Observed(rayjob) for rayjob in rayjobs}
        names = observed.keys() & {job.job_id for job in jobs}
        return Answer({name: RayJobState.of(name, observed[name]) for name in names})

    def cancel(self, job: Handle, *, only_waiting: bool = False) -> None:
        """Delete the RayJob, and the objects that have no owner because `kubectl apply` created them."""
        answer, kubectl = self.states([job]), _kubectl_of(job)
        if only_waiting and answer.no_answer is not None:  # it may have started
            raise Unanswered(answer.no_answer)
        state = answer.jobs.get(job.job_id)
        if only_waiting and state is not None and not state.is_waiting:
            return
        kubectl.delete(RAYJOBS, job.job_id, _DELETE_S)
        for kind in _DELETED_WITH_IT:
            kubectl("delete", kind, f"--selector={RUN_LABEL}={job.job_id}", "--wait=false")


SCHEDULER = KubernetesScheduler()


def named(name: str, kubectl: Kubectl) -> Handle:
    """Return the handle of the RayJob of this name."""
    where = f"namespace {kubectl.namespace}" + (f" of context {kubectl.context}" if kubectl.context else "")
    return Handle(name, where, namespace=kubectl.namespace or "", context=kubectl.context or "")


def _kubectl_of(job: Handle) -> Kubectl:
    return Kubectl(job.namespace or None, job.context or None)


def handle_of(job: SiteJob, rayjob: Manifest) -> Handle:
    """Return the handle of a job's RayJob, whoever applied it."""
    namespace, context = str(rayjob["metadata"]["namespace"]), Kubectl.of(job).current_context()
    kubectl = Kubectl(namespace, context)
    log = f"{kubectl.typed} logs -f job/{job.name}"
    return replace(named(job.name, kubectl), output=log, storage=PodJob.of(job).job.storage.uri)


def _objects(plan: Plan, kubectl: Kubectl) -> list[Manifest]:
    """Return the objects of the plan, without claims that exist: these may have another size or class."""
    planned = [*yaml.load_all(plan.script, _LOADER)]
    claims = [each for each in planned if each["kind"] == "PersistentVolumeClaim"]
    existing = [each for each in claims if kubectl.find("persistentvolumeclaim", name_of(each)) is not None]
    return [each for each in planned if each not in existing]


def _end_head(kubectl: Kubectl, name: str) -> None:
    """End the head's pod that stays for kubernetes.ttl after the run's end: a quota may have room for one."""
    with contextlib.suppress(ClusterError):  # it is gone by now, or the account may not: it goes by itself
        for pod in kubectl.list("pods", f"{RUN_LABEL}={name},{ROLE_LABEL}=head"):
            if is_terminating(pod):
                kubectl("exec", name_of(pod), f"--container={HEAD_CONTAINER}", "--", "touch", LEAVE_FILE)


def owned(objects: Sequence[Manifest], rayjob: Manifest) -> list[Manifest]:
    """Return the objects that Kubernetes deletes with the RayJob, each with the RayJob as its owner.

    Claims are left out, because they have the run's storage.
    """
    owner = {key: rayjob[key] for key in ("apiVersion", "kind")}
    owner |= {key: rayjob["metadata"][key] for key in ("name", "uid")}
    return [
        {**each, "metadata": {**each["metadata"], "ownerReferences": [owner]}}
        for each in objects
        if each["kind"] not in ("RayJob", "PersistentVolumeClaim")
    ]


def _check_over(rayjob: Manifest, command: CommandLine) -> None:
    """Refuse to replace a RayJob that is not over."""
    if not Observed(rayjob).is_over:
        raise ClusterError(
            f"RayJob {rayjob['metadata']['name']} exists already: {Observed(rayjob).summary}.\n"
            f"Wait for its end, or stop it with `{command.of('stop')}`."
        )
