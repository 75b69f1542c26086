"""Rules for a RayJob: what the KubeRay operator refuses, and mistakes that it accepts.

The operator writes a refusal into status.message and sets status.jobDeploymentStatus to ValidationFailed,
which is final. `kubectl apply` reports no error.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

import yaml

from clustertrain.launchers.kubernetes.rules.deletion import deletion
from clustertrain.launchers.kubernetes.rules.finding import By, Field, Finding, texts
from clustertrain.launchers.kubernetes.rules.names import label_1035
from clustertrain.launchers.kubernetes.rules.pod import pod_template
from clustertrain.launchers.kubernetes.rules.queue import queueing
from clustertrain.launchers.kubernetes.rules.raycluster import cluster_spec, ray_version
from clustertrain.launchers.kubernetes.rules.security import (
    Level,
    added_without_context,
    pod_security,
)
from clustertrain.units import shortened

# Of 63 characters, the operator adds 6 for the name of the Ray cluster, and 10 for its pods and services.
LONGEST_RAYJOB, LONGEST_RAYCLUSTER = 47, 53
MODES = ("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode")
_SELECTOR = "ray.io/cluster"
_MANAGERS = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue")


def rayjob(job: Field, level: Level) -> Iterator[Finding]:
    """All rules for a RayJob."""
    spec = job.at("spec")
    yield from ray_name(job.at("metadata", "name"), LONGEST_RAYJOB)
    yield from _times(spec)
    yield from deletion(spec)
    yield from _cluster_or_selector(spec)
    yield from _submission(spec)
    yield from _sidecar(spec, level)
    yield from _submitter(spec, level)
    yield from _runtime_environment(spec)
    yield from _manager(spec.at("managedBy"))
    yield from texts(spec.at("metadata"))
    cluster = spec.at("rayClusterSpec")
    if cluster.at("authOptions", "enableK8sTokenAuth").is_true:
        message = "is true, which the operator does not support for a RayJob"
        remedy = "Take it out: with authOptions.mode: token the operator creates a token for the cluster."
        yield cluster.at("authOptions", "enableK8sTokenAuth").finding(message, remedy)
    if cluster.is_set:
        yield from cluster_spec(cluster, job.at("metadata", "annotations"), level)
        yield from _manager(cluster.at("managedBy"))
    if cluster.at("upgradeStrategy", "type").is_set:
        message = "is given, which the operator refuses for the cluster of a RayJob: the job waits forever"
        yield cluster.at("upgradeStrategy", "type").finding(message, "Take it out.")
    yield from queueing(job)


def ray_name(name: Field, longest: int) -> Iterator[Finding]:
    """The name of a RayJob or a RayCluster."""
    if len(name.text) > longest:
        message = f"is {name.shown}, {len(name.text)} characters long, and at most {longest} are allowed"
        yield name.finding(message, "Choose a shorter name.")
    if name.text and (problem := label_1035(name.text)):
        yield name.finding(f"is {name.shown}, and {problem}", "Rename it.")


def _times(spec: Field) -> Iterator[Finding]:
    ends, ttl = spec.at("shutdownAfterJobFinishes"), spec.at("ttlSecondsAfterFinished")
    if (ttl.number or 0) < 0:
        yield ttl.finding(f"is {ttl.number}, and must not be negative", "Give seconds, such as 600.")
    if (ttl.number or 0) > 0 and not ends.is_true:
        message = f"is {ttl.number} while shutdownAfterJobFinishes is {_value_text(ends)}"
        yield ttl.finding(message, "Set spec.shutdownAfterJobFinishes: true, or leave the TTL out.")
    if spec.at("suspend").is_true and not ends.is_true:
        message = f"is true while shutdownAfterJobFinishes is {_value_text(ends)}"
        yield spec.at("suspend").finding(message, "Set spec.shutdownAfterJobFinishes: true.")
    if (
        not ends.is_true
        and not spec.at("deletionStrategy").is_set
        and not spec.at("clusterSelector").entries()
    ):
        message = f"is {_value_text(ends)}: the cluster stays, with its GPUs, after the job has ended"
        remedy = "Set it to true; ttlSecondsAfterFinished keeps the cluster for a while after the end."
        yield ends.finding(message, remedy, "nobody")
    for key in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        deadline = spec.at(key)
        if deadline.number is not None and deadline.number <= 0:
            by: By = "api" if key == "preRunningDeadlineSeconds" else "operator"
            message = f"is {deadline.number}, and must be above 0"
            yield deadline.finding(message, "Give seconds, or leave it out for no deadline.", by)
    limit = spec.at("backoffLimit")
    if (limit.number or 0) < 0:
        yield limit.finding(f"is {limit.number}, and must not be negative", "Give 0 for no second cluster.")


def _cluster_or_selector(spec: Field) -> Iterator[Finding]:
    selector, cluster = spec.at("clusterSelector"), spec.at("rayClusterSpec")
    if not selector.entries():
        if not cluster.is_set:
            yield cluster.finding("is missing, and so is clusterSelector", "Give one of them.")
        return
    yield from texts(selector)
    if not selector.at(_SELECTOR).text:
        yield selector.finding(f"has no {_SELECTOR}", f"Name the RayCluster: {_SELECTOR}: NAME.")
    if cluster.is_set:
        message = "is given together with clusterSelector, and has no effect"
        yield cluster.finding(message, "Leave one of them out.", "nobody")
    if spec.at("suspend").is_true:
        yield spec.at("suspend").finding(
            "is true, which clusterSelector does not allow", "Leave one of them out."
        )
    if (spec.at("backoffLimit").number or 0) > 0:
        message = (
            f"is {spec.at('backoffLimit').number}, and with clusterSelector no second cluster is created"
        )
        yield spec.at("backoffLimit").finding(message, "Set it to 0.")


def _submission(spec: Field) -> Iterator[Finding]:
    mode = spec.at("submissionMode")
    if mode.is_set and mode.text not in MODES:
        near = get_close_matches(mode.text, MODES, n=1, cutoff=0.4)
        message = f"is {mode.shown}: the operator starts the cluster and never submits the job"
        remedy = f"Did you mean '{near[0]}'?" if near else f"The modes are {', '.join(MODES)}."
        yield mode.finding(message, remedy, "nobody")
    if mode.text == "InteractiveMode" and (spec.at("backoffLimit").number or 0) > 0:
        message = f"is {spec.at('backoffLimit').number}, and InteractiveMode creates no second cluster"
        yield spec.at("backoffLimit").finding(message, "Set it to 0.")
    own_command = any(each.at("command").items() for each in _submitters(spec))
    if mode.text != "InteractiveMode" and not own_command and not spec.at("entrypoint").text.strip():
        message = "is missing: `ray job submit` has no command to run"
        yield spec.at("entrypoint").finding(message, "Give the command line.", "nobody")
    host = spec.at("rayClusterSpec", "headGroupSpec", "rayStartParams", "dashboard-host")
    if host.text in ("127.0.0.1", "localhost", "::1") and mode.text != "SidecarMode":
        message = f"is {host.shown}: the submitter and the operator, in other pods, cannot reach it"
        yield host.finding(message, "Leave it out: the operator sets 0.0.0.0.", "nobody")
    stated = spec.at("rayClusterSpec", "rayVersion")
    if spec.at("metadata").entries() and spec.at("rayClusterSpec").is_set and not ray_version(stated.text):
        message = f"is {_value_text(stated)}, and spec.metadata is only submitted if the version is valid"
        yield stated.finding(message, "Give the image's version of Ray.", "nobody")


def _sidecar(spec: Field, level: Level) -> Iterator[Finding]:
    mode = spec.at("submissionMode")
    if mode.text != "SidecarMode":
        return
    if spec.at("clusterSelector").entries():
        yield spec.at("clusterSelector").finding("is given with SidecarMode", "Use K8sJobMode.")
    for key in ("submitterPodTemplate", "submitterConfig"):
        if spec.at(key).is_set:
            message = "is given with SidecarMode, which has no pod for the submitter"
            yield spec.at(key).finding(message, "Take it out, or use K8sJobMode.")
    policy = spec.at("rayClusterSpec", "headGroupSpec", "template", "spec", "restartPolicy")
    if policy.text not in ("", "Never"):
        message = f"is {policy.shown}, and must be Never with SidecarMode"
        yield policy.finding(message, "Leave it out.")
    if level == "restricted":
        yield added_without_context(mode, "the submitter to the head's pod", "Use K8sJobMode.")


def _submitter(spec: Field, level: Level) -> Iterator[Finding]:
    """The pod that runs `ray job submit` in K8sJobMode. It would be refused only after the cluster is up."""
    if spec.at("submissionMode").text not in ("", "K8sJobMode"):
        return
    limit = spec.at("submitterConfig", "backoffLimit")
    if (limit.number or 0) < 0:
        yield limit.finding(
            f"is {limit.number}, and must not be negative", "Give a number such as 2.", "pods"
        )
    template = spec.at("submitterPodTemplate")
    if not template.is_set:
        if level == "restricted":
            remedy = "Give one with the head's image and securityContext."
            yield added_without_context(template, "a pod for the submitter", remedy)
        return
    policy = template.at("spec", "restartPolicy")
    if policy.text not in ("OnFailure", "Never"):
        message = f"is {_value_text(policy)}, and must be Never or OnFailure for the pod of a Kubernetes Job"
        yield policy.finding(message, "Set it to Never.", "pods")
    found = template.at("spec", "containers")
    if not found.items():
        by: By = "nobody" if found.is_set else "api"
        yield found.finding("has no container: the job is never submitted", "Give one.", by)
    yield from pod_template(template)
    yield from pod_security(template, level)


def _submitters(spec: Field) -> list[Field]:
    """The container that submits the job: the first of the template. Empty without a template."""
    return spec.at("submitterPodTemplate", "spec", "containers").items()[:1]


def _runtime_environment(spec: Field) -> Iterator[Finding]:
    text = spec.at("runtimeEnvYAML")
    if text.is_set and not isinstance(text.value, str):
        message = f"is {text.shown}, and must be text that contains YAML"
        yield text.finding(message, "Write `runtimeEnvYAML: |` and the mapping below it.", "api")
        return
    try:
        read = yaml.safe_load(text.text)
    except yaml.YAMLError as error:
        yield text.finding(f"is not YAML: {shortened(str(error))}", "Correct it.")
        return
    if read is not None and not isinstance(read, dict):
        message = "must contain a mapping, such as env_vars: {NAME: value}"
        yield text.finding(message, "Write a mapping, or leave it out.")


def _manager(manager: Field) -> Iterator[Finding]:
    if manager.is_set and manager.value not in _MANAGERS:
        message = f"is {manager.shown}, and must be {' or '.join(_MANAGERS)}"
        yield manager.finding(message, "Leave it out.", "api")


def _value_text(field: Field) -> str:
    return field.shown if field.is_set else "missing"
