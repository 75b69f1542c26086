"""Rules of Kueue, Volcano, YuniKorn and KAI for a RayJob whose labels name one of their queues.

Kueue refuses a RayJob with a webhook. The others are plugins of the operator, which retries forever after a
refusal. Kueue's limits are those of 0.14.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clustertrain.launchers.kubernetes.rules.finding import By, Field, Finding
from clustertrain.launchers.kubernetes.rules.names import qualified, subdomain

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
VOLCANO_QUEUE = "volcano.sh/queue-name"
YUNIKORN_QUEUE = "yunikorn.apache.org/queue"
KAI_QUEUE = "kai.scheduler/queue"
_KUEUE_MOST_PODSETS = 8  # kinds of pods of one workload
_TOPOLOGIES = tuple(
    f"kueue.x-k8s.io/podset-{which}-topology" for which in ("required", "preferred", "unconstrained")
)
_SLICE, _SLICE_SIZE = "kueue.x-k8s.io/podset-slice-required-topology", "kueue.x-k8s.io/podset-slice-size"
_BOOLEANS = ("1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false", "FALSE", "False")


def queueing(job: Field) -> Iterator[Finding]:
    """All rules for the queues of a RayJob."""
    labels = job.at("metadata", "labels")
    queues = [key for key in (KUEUE_QUEUE, VOLCANO_QUEUE, YUNIKORN_QUEUE, KAI_QUEUE) if labels.at(key).text]
    if len(queues) > 1:
        message = (
            f"name the queues of {len(queues)} schedulers, {' and '.join(queues)}: each would queue the job"
        )
        yield labels.finding(message, "Leave all but one out.", "nobody")
    queue = labels.at(KUEUE_QUEUE)
    if queue.text and (problem := subdomain(queue.text)):
        yield queue.finding(f"is {queue.shown}, and the name of a queue {problem}", "Name one.", "kueue")
    if queue.text:
        yield from _kueue(job)
    yield from _kueue_topology(job)
    if VOLCANO_QUEUE in queues:
        yield from _volcano(job)
    if YUNIKORN_QUEUE in queues:
        yield from _yunikorn(job)
    if KAI_QUEUE in queues and job.at("spec", "submissionMode").text in ("", "K8sJobMode"):
        message = "is K8sJobMode, whose submitter starts after the cluster: KAI's operator plugin refuses it"
        yield job.at("spec", "submissionMode").finding(message, "Use HTTPMode or SidecarMode.", "kai")


def _kueue(job: Field) -> Iterator[Finding]:
    spec = job.at("spec")
    cluster, groups = spec.at("rayClusterSpec"), spec.at("rayClusterSpec", "workerGroupSpecs")
    if not spec.at("shutdownAfterJobFinishes").is_true:
        message = (
            f"is not true, and a job in Kueue's queue ({KUEUE_QUEUE}) must release its resources at its end"
        )
        yield spec.at("shutdownAfterJobFinishes").finding(message, "Set it to true.", "kueue")
    if spec.at("clusterSelector").entries():
        message = "is given, and Kueue has to start the cluster itself"
        yield spec.at("clusterSelector").finding(message, "Give rayClusterSpec instead.", "kueue")
    if cluster.at("enableInTreeAutoscaling").is_true:
        message = "is true, and Kueue 0.14 admits a RayJob only at a fixed size"
        yield cluster.at("enableInTreeAutoscaling").finding(message, "Take it out.", "kueue")
    yield from _podsets(spec, groups)
    time = job.at("metadata", "labels", "kueue.x-k8s.io/max-exec-time-seconds")
    if time.text and not (re.fullmatch(r"\+?\d+", time.text) and int(time.text) > 0):
        yield time.finding(f"is {time.shown}, and must be a number of seconds above 0", "Change it.", "kueue")


def _podsets(spec: Field, groups: Field) -> Iterator[Finding]:
    """Kueue counts kinds of pods: the head, each worker group, and the submitter if it has a pod."""
    has_submitter = spec.at("submissionMode").text in ("", "K8sJobMode")
    count, most = len(groups.items()), _KUEUE_MOST_PODSETS - 1 - has_submitter
    if count > most:
        rest = "the head" + (" and the submitter" if has_submitter else "")
        message = f"has {count} groups: with {rest} {count + 1 + has_submitter} kinds of pods, "
        # The webhook does not count the submitter: Kueue then cannot create the Workload, and the job waits.
        by: By = "kueue" if count > _KUEUE_MOST_PODSETS - 1 else "nobody"
        yield groups.finding(
            f"{message}and Kueue 0.14 allows {_KUEUE_MOST_PODSETS}", "Merge some groups.", by
        )
    for group in groups.items():
        name = group.at("groupName")
        if name.text == "head":
            yield name.finding(
                "is 'head', a name that Kueue reserves for the head", "Rename the group.", "kueue"
            )
        elif has_submitter and name.text.lower() == "submitter":
            message = f"is {name.shown}, a name that Kueue reserves for the submitter: the job waits forever"
            yield name.finding(message, "Rename the group.", "nobody")
        elif not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name.text.lower()):
            message = f"is {name.shown}, and Kueue allows letters, digits and '-': the job waits forever"
            yield name.finding(message, "Rename the group.", "nobody")


def _kueue_topology(job: Field) -> Iterator[Finding]:
    """The topology annotations of the cluster's pods. Kueue checks them even if the job has no queue."""
    cluster = job.at("spec", "rayClusterSpec")
    for group in (cluster.at("headGroupSpec"), *cluster.at("workerGroupSpecs").items()):
        annotations = group.at("template", "metadata", "annotations")
        given = [key for key in _TOPOLOGIES if annotations.at(key).is_set]
        if len(given) > 1:
            yield annotations.finding(
                f"have {' and '.join(given)}, and at most one is allowed", "Leave all but one out.", "kueue"
            )
        for key in (*_TOPOLOGIES[:2], _SLICE):
            level = annotations.at(key)
            if level.is_set and (problem := qualified(level.text)):
                message = (
                    f"is {level.shown}, and a level of the topology is the key of a label, which {problem}"
                )
                yield level.finding(message, "Name a level: `kubectl get topologies -o yaml`.", "kueue")
        free = annotations.at(_TOPOLOGIES[2])
        if free.is_set and free.text not in _BOOLEANS:
            yield free.finding(f"is {free.shown}, and must be 'true' or 'false'", "Change it.", "kueue")
        yield from _slices(group, annotations)


def _slices(group: Field, annotations: Field) -> Iterator[Finding]:
    level, size = annotations.at(_SLICE), annotations.at(_SLICE_SIZE)
    if level.is_set != size.is_set:
        missing, there = (size, _SLICE) if level.is_set else (level, _SLICE_SIZE)
        yield missing.finding(f"is missing, and {there} needs it", "Give both or none.", "kueue")
    if not size.is_set:
        return
    replicas = group.at("replicas")
    pods = (replicas.number if replicas.number is not None else 1) * max(
        group.at("numOfHosts").number or 1, 1
    )
    if not re.fullmatch(r"\d{1,9}", size.text) or int(size.text) < 1:
        yield size.finding(f"is {size.shown}, and must be a whole number above 0", "Change it.", "kueue")
    elif int(size.text) > pods:
        yield size.finding(f"is {size.text}, and there are {pods} pods", f"Give {pods} or less.", "kueue")


def _volcano(job: Field) -> Iterator[Finding]:
    labels = job.at("metadata", "labels")
    if job.at("spec", "clusterSelector").entries():
        message = "is given, and Volcano's operator plugin schedules only jobs with their own cluster"
        yield job.at("spec", "clusterSelector").finding(message, "Give rayClusterSpec instead.", "nobody")
    mode = labels.at("volcano.sh/network-topology-mode")
    if mode.is_set and mode.text not in ("hard", "soft"):
        yield mode.finding(f"is {mode.shown}, and must be 'hard' or 'soft'", "Name one of them.", "nobody")
    tier = labels.at("volcano.sh/network-topology-highest-tier-allowed")
    if mode.is_set and tier.is_set and not re.fullmatch(r"[+-]?\d+", tier.text):
        yield tier.finding(
            f"is {tier.shown}, and must be a whole number", "Give a number such as '1'.", "nobody"
        )


def _yunikorn(job: Field) -> Iterator[Finding]:
    labels = job.at("metadata", "labels")
    application, gang = labels.at("yunikorn.apache.org/app-id"), labels.at("ray.io/gang-scheduling-enabled")
    if not application.text:
        message = "is missing, and YuniKorn needs it to group the pods of an application"
        yield application.finding(message, "Give the job's name.", "nobody")
    if gang.is_set and gang.text != "true":
        message = f"is {gang.shown}, and the label turns gang scheduling on with any value"
        yield gang.finding(message, "Take the label out, or set it to 'true'.", "nobody")
