"""Kubernetes as a scheduler: RayJobs are rendered, checked, applied and asked for.

manifests ─▶ the API server's dry run ─▶ kubectl apply
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence

import yaml

from clustertrain.errors import ClusterError
from clustertrain.job.references import names_of
from clustertrain.job.site import SiteJob
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl, words_of
from clustertrain.launchers.kubernetes.observed.pods import is_terminating, name_of
from clustertrain.launchers.kubernetes.observed.state import Observed
from clustertrain.launchers.kubernetes.observed.view import RAYJOBS, first_word
from clustertrain.launchers.kubernetes.render.manifests import manifests, to_json, to_yaml
from clustertrain.launchers.kubernetes.render.paths import LEAVE_FILE, PodJob
from clustertrain.launchers.kubernetes.render.pods import HEAD_CONTAINER, ROLE_LABEL, RUN_LABEL, Manifest
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.scheduler.interface import Scheduler, Sent, State
from clustertrain.launchers.scheduler.needs import Needs
from clustertrain.launchers.shell import CommandFailed

OUR_LABEL = "app.kubernetes.io/managed-by=clustertrain"
_DELETED_WITH_IT = "configmaps", "networkpolicies.networking.k8s.io"
_SET_IN_PODS = ("HOME", "USER", "PATH")
_APPLY_S = 60.0
_DELETE_S = 300.0  # the pods may save first
# A client-side apply would write the whole object into an annotation, which has at most 256 KiB.
_APPLY = ("apply", "--server-side", "--filename=-")
# `kubectl apply` sends the objects one after another, and the dry run refuses before the first is stored.
_DRY_APPLY = ("apply", "--server-side", "--dry-run=server", "--filename=-")
_DRY_CREATE = ("create", "--dry-run=server", "--filename=-")
_NO_DRY_RUN = "does not support dry run"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in Python a second and a half for 900 kB of code


class KubernetesScheduler(Scheduler):
    """The clusters of kubectl's configuration; the ID of a job is the name of its RayJob."""

    label = "Kubernetes"
    max_hosts = math.inf

    def script(self, job: SiteJob, needs: Needs) -> str:
        return to_yaml(manifests(job, needs.options))

    def check(self, job: SiteJob, script: str) -> Iterator[str]:
        kubectl, objects = Kubectl.of(job), _read(script)
        yield "its objects: " + ", ".join(f"{each['kind']} {name_of(each)}" for each in objects)
        for name, key in names_of(job.start_texts).items():
            if name not in _SET_IN_PODS and not job.section(Kubernetes).secrets:
                yield f"{key}: {name} is not sent from here; the image has to set it, or a Secret"
        is_replaced = kubectl.find(RAYJOBS, job.name) is not None
        yield from check_admission(_without_claims(objects, kubectl), kubectl, replaced=is_replaced)

    def submit(self, job: SiteJob, script: str, environment: Mapping[str, str]) -> Sent:
        """Apply the objects of the script, which contain the job and its code.

        An earlier RayJob of the same name is replaced if it is over.
        """
        kubectl, printed = Kubectl.of(job), []
        objects = _without_claims(_read(script), kubectl)
        if (before := kubectl.find(RAYJOBS, job.name)) is not None:
            observed = Observed(before)
            if not observed.is_over:
                raise ClusterError(
                    f"RayJob {job.name} exists already: {observed.summary}.\nWait for its end, or stop it."
                )
            printed.append(
                f"RayJob {job.name} is over ({observed.summary}) and is replaced; its storage stays"
            )
            kubectl.delete(RAYJOBS, job.name, _DELETE_S)
            _end_head(kubectl, job.name)
        kubectl(*_APPLY, input=to_json(objects), timeout_s=_APPLY_S)
        made = json.loads(kubectl("get", RAYJOBS, job.name, "--output=json").stdout)
        # The owner's uid exists only now. Server-side apply replaces the owner that an earlier one has left.
        kubectl(*_APPLY, input=to_json(owned(objects, made)), timeout_s=_APPLY_S)
        there = Kubectl(str(made["metadata"]["namespace"]), kubectl.current_context())
        printed += [f"the run is in {PodJob.of(job).job.run_uri}", first_word(job)]
        log = f"{there.typed} logs -f job/{job.name}"
        return Sent(job.name, log, printed, place_of(there))

    def query(self, jobs: Sequence[Sent]) -> dict[str, State]:
        try:
            rayjobs = _kubectl_of(jobs[0]).list(RAYJOBS, OUR_LABEL)
        except CommandFailed as error:
            raise ClusterError(words_of(error)) from error
        asked = {job.job_id for job in jobs}
        return {name_of(each): Observed(each).native for each in rayjobs if name_of(each) in asked}

    def cancel(self, job: Sent) -> None:
        """Delete the RayJob, and the objects that have no owner because `kubectl apply` created them."""
        kubectl = _kubectl_of(job)
        kubectl.delete(RAYJOBS, job.job_id, _DELETE_S)
        for kind in _DELETED_WITH_IT:
            kubectl("delete", kind, f"--selector={RUN_LABEL}={job.job_id}", "--wait=false")


SCHEDULER = KubernetesScheduler()


def place_of(kubectl: Kubectl) -> dict[str, str]:
    """Return the place of the jobs that this kubectl sees."""
    place = {"namespace": kubectl.namespace, "context": kubectl.context}
    return {key: value for key, value in place.items() if value}


def _kubectl_of(job: Sent) -> Kubectl:
    return Kubectl(job.place.get("namespace"), job.place.get("context"))


def _read(script: str) -> list[Manifest]:
    return [*yaml.load_all(script, _LOADER)]


def _without_claims(objects: Sequence[Manifest], kubectl: Kubectl) -> list[Manifest]:
    """Return the objects without claims that exist: these may have another size or class."""
    claims = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    existing = [each for each in claims if kubectl.find("persistentvolumeclaim", name_of(each)) is not None]
    return [each for each in objects if each not in existing]


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


def check_admission(objects: Sequence[Manifest], kubectl: Kubectl, *, replaced: bool = False) -> list[str]:
    """Have the API server check the objects before they are applied, and return notes on unchecked ones.

    Args:
        replaced: a RayJob of this name exists, and is deleted before the new one is applied. The new one is
            checked as a creation, since updates of a RayJob have other rules.

    Raises:
        Unanswered: as `Kubectl.__call__`.
        ClusterError: the server refuses an object; the message is the server's.
    """
    created = [_unnamed(each) for each in objects if replaced and each["kind"] == "RayJob"]
    applied = [each for each in objects if not (replaced and each["kind"] == "RayJob")]
    return [
        note
        for how, sent in ((_DRY_APPLY, applied), (_DRY_CREATE, created))
        if sent
        for note in _refused(how, sent, kubectl)
    ]


def _unnamed(manifest: Manifest) -> Manifest:
    """Return the object with `generateName`, since the server refuses to create one whose name exists."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "name"}
    return {**manifest, "metadata": {**metadata, "generateName": f"{manifest['metadata']['name']}-"}}


def _refused(how: Sequence[str], objects: Sequence[Manifest], kubectl: Kubectl) -> list[str]:
    """Return the server's messages on what it can check only when the object is applied."""
    try:
        kubectl(*how, input=to_json(objects), timeout_s=_APPLY_S)
    except CommandFailed as error:
        said = [line for line in error.stderr.splitlines() if not line.startswith("Warning: ")]
        if all(_NO_DRY_RUN in line for line in said):
            return said
        text = "\n".join(said) or str(error)
        raise ClusterError(f"The API server refuses this, and nothing was applied:\n{text}") from None
    return []
