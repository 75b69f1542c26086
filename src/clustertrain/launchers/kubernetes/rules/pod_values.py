"""Fields of a pod that take a range of numbers or one of some words. No schema has these rules: in the API
server they are Go code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from clustertrain.launchers.kubernetes.rules.finding import (
    LARGEST_INT32,
    Field,
    Finding,
    text_items,
    too_large,
)

_COUNT, _PORT, _ID = (0, LARGEST_INT32), (1, 65535), (0, LARGEST_INT32)
_POD_NUMBERS = {
    "activeDeadlineSeconds": (1, LARGEST_INT32),
    "securityContext.fsGroup": _ID,
    "securityContext.runAsGroup": _ID,
    "securityContext.runAsUser": _ID,
}
_CONTAINER_NUMBERS = {"securityContext.runAsGroup": _ID, "securityContext.runAsUser": _ID}
_PROBE_NUMBERS = {
    **dict.fromkeys(("failureThreshold", "initialDelaySeconds", "periodSeconds", "successThreshold"), _COUNT),
    "timeoutSeconds": _COUNT,
}
_HANDLER_NUMBERS = {"httpGet.port": _PORT, "tcpSocket.port": _PORT, "grpc.port": _PORT}
# int64 in Go, although no larger number than that of int32 is valid.
_LONG = ("activeDeadlineSeconds", "fsGroup", "runAsGroup", "runAsUser")
_POD_WORDS = {
    "preemptionPolicy": ("Never", "PreemptLowerPriority"),
    "securityContext.fsGroupChangePolicy": ("Always", "OnRootMismatch"),
}
_CONTAINER_WORDS = {"terminationMessagePolicy": ("FallbackToLogsOnError", "File")}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_POD_FIELDS = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
_ONE_LABEL = re.compile(r"metadata\.(annotations|labels)\['[^']+'\]")


def with_handlers(container: Field) -> list[Field]:
    """The hooks and probes of a container. Each has a handler: a command, or a request."""
    lifecycle = container.at("lifecycle")
    return [lifecycle.at("postStart"), lifecycle.at("preStop"), *map(container.at, _PROBES)]


def pod_values(spec: Field) -> Iterator[Finding]:
    """The rules for the spec of a pod, without its containers."""
    yield from _numbers(spec, _POD_NUMBERS)
    yield from _words(spec, _POD_WORDS)


def container_values(container: Field) -> Iterator[Finding]:
    """The rules for a container."""
    yield from _numbers(container, _CONTAINER_NUMBERS)
    yield from _words(container, _CONTAINER_WORDS)
    for probe in map(container.at, _PROBES):
        yield from _numbers(probe, _PROBE_NUMBERS)
    for field in with_handlers(container):
        yield from _numbers(field, _HANDLER_NUMBERS)
        command = field.at("exec", "command")
        if field.at("exec").is_set and not command.items():
            yield command.finding("is missing", "Give the command as a list.", "pods")
        yield from text_items(command)
    for variable in container.at("env").items():
        source = variable.at("valueFrom", "fieldRef", "fieldPath")
        if source.is_set and source.text not in _POD_FIELDS and not _ONE_LABEL.fullmatch(source.text):
            message = f"is {source.shown}, and must be one of {', '.join(_POD_FIELDS)}"
            remedy = "Or name one label or annotation: metadata.labels['KEY']."
            yield source.finding(message, remedy, "pods")


def _numbers(field: Field, ranges: Mapping[str, tuple[int, int]]) -> Iterator[Finding]:
    for path, (least, most) in ranges.items():
        given = field.at(*path.split("."))
        if (given.number or 0) > LARGEST_INT32 and path.rpartition(".")[2] not in _LONG:
            yield too_large(given)
        elif given.number is not None and not least <= given.number <= most:
            yield given.finding(f"is {given.number}, and must be {least} to {most}", "Change it.", "pods")


def _words(field: Field, words: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    for path, allowed in words.items():
        given = field.at(*path.split("."))
        if given.is_set and given.value not in allowed:
            message = f"is {given.shown}, and must be one of {', '.join(allowed)}"
            yield given.finding(message, "Name one of them, or leave it out.", "pods")
