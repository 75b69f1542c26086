"""`validate --to kubernetes`: checks a job file or a file of manifests, and applies nothing.

refused   the cluster refuses it, at once or later: an error that names what refuses it, when, and the remedy
advised   the cluster accepts it, although it does not work as intended or is unsafe: a line of the output
noted     what was not checked, and why

The rules come first. If a cluster answers, it checks the objects as well, with the schemas of its CRDs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.job.site import with_site
from clustertrain.launchers.check import check_loggers
from clustertrain.launchers.kubernetes.dry_run import RefusedByServer, check_admission
from clustertrain.launchers.kubernetes.kubectl import Forbidden, Kubectl, NoAnswer
from clustertrain.launchers.kubernetes.manifest_file import manifests_in
from clustertrain.launchers.kubernetes.namespace_rules import check_in_namespaces
from clustertrain.launchers.kubernetes.operator_pods import check_pods
from clustertrain.launchers.kubernetes.pod_layout import with_nodes
from clustertrain.launchers.kubernetes.preflight import check_cluster
from clustertrain.launchers.kubernetes.render.manifests import Manifest, manifests
from clustertrain.launchers.kubernetes.rules.check import advice
from clustertrain.launchers.kubernetes.rules.schemas import VERSION, schemas_of, versions
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.kubernetes.submit import rayjob_of
from clustertrain.launchers.launcher import Checked, CheckOptions
from clustertrain.launchers.shell import CommandMissing
from clustertrain.node.installed import how_to_install
from clustertrain.run.command_line import typed


def validate(path: Path, sets: Sequence[str], options: CheckOptions) -> Checked:
    """Check a job file, or a file of manifests.

    Raises:
        JobError: the file is wrong, or its objects would be refused.
        StorageError: as `submit.render`.
        ClusterError: the cluster could never start the job.
    """
    version = _version(options)
    documents = manifests_in(path)
    if documents is not None:
        return _validate_manifests(path, documents, options, version)
    job: Job = with_site(load_job(path, sets))
    command = typed("submit --to kubernetes", str(path), sets)
    kubectl = Kubectl.of(job.section(Kubernetes))
    job, layout = with_nodes(job, kubectl, command)
    objects = manifests(job)

    def in_cluster() -> Iterator[str]:
        yield from check_cluster(job, objects, kubectl, command)
        yield from check_admission(objects, kubectl, replaced=rayjob_of(kubectl, job.name) is not None)
        yield from check_pods(objects, kubectl)

    findings, notes = check_in_namespaces(objects, kubectl, options.pod_security, options.kubernetes_version)
    notes += [f"note: {text}" for text in check_loggers(job, elsewhere=True)]
    notes += _of_reachable_cluster(in_cluster(), version)
    kinds = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in objects)
    advised = advice(findings)
    return Checked(
        [*layout, *notes, *advised, f"{path}: {kinds}: KubeRay would refuse none of them"], len(advised)
    )


def _validate_manifests(
    path: Path, documents: Sequence[Manifest], options: CheckOptions, version: str
) -> Checked:
    kubectl = Kubectl()
    findings, notes = check_in_namespaces(
        documents, kubectl, options.pod_security, options.kubernetes_version
    )
    notes += [
        f"note: {each.where} {each.message}: older operators refuse it" for each in findings if each.since
    ]
    try:
        notes += _of_reachable_cluster(_sent_to_cluster(documents, kubectl), version)
    except RefusedByServer as error:
        raise JobError(str(error)) from None
    advised = advice(findings)
    summary = f"{path}: {len(documents)} objects, none of which KubeRay would refuse"
    return Checked([*notes, *advised, summary], len(advised))


def _version(options: CheckOptions) -> str:
    version = options.kubernetes_version or VERSION
    if options.kubernetes_version and schemas_of(version) is None:
        known = ", ".join(versions())
        remedy = f"It has {known}." if known else how_to_install("kubernetes")
        raise JobError(f"--kubernetes-version {version}: kubernetes-validate has no such schemas.\n{remedy}")
    return version


# ----------------------------------------------------------------------------------------------- the cluster


def _of_reachable_cluster(checks: Iterator[str], version: str) -> Iterator[str]:
    """The notes of checks that need a cluster; if it cannot be reached, a note on what was not checked."""
    try:
        yield from checks
    except Forbidden as error:
        yield f"note: the API server did not check the objects: {str(error).splitlines()[0]}"
    except (CommandMissing, NoAnswer) as error:
        left_out = "CRDs, admission webhooks and policies, named objects, capacity"
        yield f"note: not checked with a cluster ({left_out}): {str(error).splitlines()[0]}"
        if schemas_of(version) is None:
            yield (
                "note: fields and types of Kubernetes' own kinds were not checked: "
                f"`{how_to_install('kubernetes')}` installs their schemas"
            )


def _sent_to_cluster(documents: Sequence[Manifest], kubectl: Kubectl) -> Iterator[str]:
    """Have the cluster check the objects, except those whose namespace or kind the file itself creates.

    A dry run creates neither, so the server would refuse these objects.
    """
    crds = [each for each in documents if each["kind"] == "CustomResourceDefinition"]
    kinds = {(each["spec"]["group"], each["spec"]["names"]["kind"]) for each in crds}
    namespaces = {each["metadata"].get("name") for each in documents if each["kind"] == "Namespace"}
    sent = [
        each
        for each in documents
        if each["metadata"].get("namespace") not in namespaces
        and (each["apiVersion"].rpartition("/")[0], each["kind"]) not in kinds
    ]
    if left := len(documents) - len(sent):
        yield f"note: {left} objects were not sent to the cluster: the file creates their namespace or kind"
    yield from check_admission(sent, kubectl)
    yield from check_pods(sent, kubectl)
