"""Rules of the API server for a pod template: that of the head, the workers or the submitter.

The CRD of RayJob does not have these rules, so the API server accepts the RayJob. It then refuses the pods,
which the operator tries to create repeatedly. Only events show the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from clustertrain.launchers.kubernetes.rules.finding import By, Field, Finding, duplicates, text_items, texts
from clustertrain.launchers.kubernetes.rules.names import (
    label_1123,
    label_value,
    metadata,
    port_name,
    qualified,
    subdomain,
)
from clustertrain.launchers.kubernetes.rules.pod_resources import not_negative, resources
from clustertrain.launchers.kubernetes.rules.pod_values import container_values, pod_values, with_handlers

_ONE_OF: dict[str, tuple[str, ...]] = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "protocol": ("TCP", "UDP", "SCTP"),
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    "medium": ("Memory", "HugePages"),
}
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_ENV_SOURCES = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef", "fileKeyRef")


def pod_template(template: Field) -> Iterator[Finding]:
    """All rules for a pod template, which has the keys metadata and spec."""
    spec = template.at("spec")
    yield from metadata(template.at("metadata"), "pods")
    yield from _one_of(spec, "restartPolicy", "dnsPolicy")
    yield from _names(spec)
    yield from _volumes(spec.at("volumes"))
    yield from _tolerations(spec.at("tolerations"))
    yield from pod_values(spec)
    grace = spec.at("terminationGracePeriodSeconds")
    if grace.number is not None and grace.number < 0:
        message = f"is {grace.number}, which counts as 1: no time for a last save"
        yield grace.finding(message, "Give seconds, such as 60.", "nobody")
    volumes = {volume.at("name").text for volume in spec.at("volumes").items()}
    for container in containers(spec):
        yield from _container(container, spec, volumes)
    yield from _same_names(containers(spec))


def containers(spec: Field) -> list[Field]:
    """The containers of a pod, init containers first."""
    return [*spec.at("initContainers").items(), *spec.at("containers").items()]


def _names(spec: Field) -> Iterator[Finding]:
    for key in ("serviceAccountName", "priorityClassName", "runtimeClassName", "schedulerName"):
        name = spec.at(key)
        if name.text and (problem := subdomain(name.text)):
            yield name.finding(f"is {name.shown}, and a name {problem}", "Name one that exists.", "pods")
    for key, entry in spec.at("nodeSelector").entries().items():
        if problem := qualified(key):
            yield entry.finding(
                f"is a label whose key {problem}",
                "`kubectl get nodes --show-labels` lists them.",
                "pods",
            )
        if problem := label_value(entry.text):
            yield entry.finding(f"is {entry.shown}, and a label {problem}", "Change the value.", "pods")
    yield from texts(spec.at("nodeSelector"))


def _same_names(fields: list[Field]) -> Iterator[Finding]:
    for name, shared in duplicates(fields, "name"):
        # In the CRD, `name` is the key of a list: a duplicate within one list is refused with the RayJob.
        by: By = "api" if _is_of_list(name, fields, shared) else "pods"
        yield name.finding(f"is '{shared}', the same as in another entry", "Give each its own name.", by)


def _is_of_list(name: Field, fields: list[Field], shared: str) -> bool:
    mine = name.path.rpartition("[")[0]
    return sum(field.at("name").text == shared and field.path.startswith(f"{mine}[") for field in fields) > 1


def _one_of(field: Field, *keys: str) -> Iterator[Finding]:
    """Rules for fields with a list of values. The API server replaces an empty text by the default."""
    for key in keys:
        chosen = field.at(key)
        if chosen.is_set and chosen.value not in ("", *_ONE_OF[key]):
            rule = ", ".join(_ONE_OF[key])
            yield chosen.finding(f"is {chosen.shown}, and must be one of {rule}", "Name one of them.", "pods")


# ------------------------------------------------------------------------------------------------ volumes


def _volumes(volumes: Field) -> Iterator[Finding]:
    yield from _same_names(volumes.items())
    for volume in volumes.items():
        name = volume.at("name")
        if problem := label_1123(name.text):
            yield name.finding(f"is {name.shown}, and the name of a volume {problem}", "Rename it.", "pods")
        sources = [key for key in volume.entries() if key != "name" and volume.at(key).is_set]
        if len(sources) > 1:
            yield volume.finding(
                f"is a volume of {len(sources)} kinds, {' and '.join(sources)}, and must be of one",
                "Write a separate volume for each.",
                "pods",
            )
        yield from _volume_source(volume)


def _volume_source(volume: Field) -> Iterator[Finding]:
    empty, claim = volume.at("emptyDir"), volume.at("persistentVolumeClaim")
    yield from _one_of(empty, "medium")
    limit = empty.at("sizeLimit")
    if limit.is_set:
        yield from not_negative(limit)
    name = claim.at("claimName")
    if claim.is_set and not name.text:
        yield name.finding("is missing", "Name a claim.", "pods")
    elif claim.is_set and (problem := subdomain(name.text)):
        message = f"is {name.shown}, and the name of a claim {problem}: the pod waits forever"
        yield name.finding(message, "Name a claim that exists.", "nobody")
    for kind in ("configMap", "secret", "projected", "downwardAPI"):
        mode = volume.at(kind, "defaultMode")
        if mode.number is not None and not 0 <= mode.number <= 0o777:
            yield mode.finding(
                f"is {mode.number}, and must be 0 to 511, which is 0777 in octal",
                "YAML reads 0440 as octal and 440 as decimal: write 288 for 0440.",
                "pods",
            )


# --------------------------------------------------------------------------------------------- containers


def _container(container: Field, pod: Field, volumes: set[str]) -> Iterator[Finding]:
    name, image = container.at("name"), container.at("image")
    if problem := label_1123(name.text):
        yield name.finding(f"is {name.shown}, and the name of a container {problem}", "Rename it.", "pods")
    if not image.text:
        yield image.finding("is missing", "Name the image, the same as in the other pods.", "pods")
    elif image.text != image.text.strip():
        yield image.finding(f"is {image.shown}, with a space at an end", "Take the space out.", "pods")
    yield from _one_of(container, "imagePullPolicy")
    yield from _mounts(container.at("volumeMounts"), volumes)
    yield from _environment(container.at("env"))
    yield from _ports(container.at("ports"))
    yield from resources(container.at("resources"))
    for key in ("command", "args"):
        yield from text_items(container.at(key))
    yield from _hooks(container)
    yield from container_values(container)
    yield from _capabilities(container, pod)
    security = container.at("securityContext")
    if security.at("privileged").is_true and security.at("allowPrivilegeEscalation").value is False:
        where = security.at("allowPrivilegeEscalation")
        yield where.finding("is false while privileged is true", "Take privileged: true out.", "pods")


def _capabilities(container: Field, pod: Field) -> Iterator[Finding]:
    """Advice on added capabilities that have no effect: Linux keeps them for root only when a program starts,
    and Kubernetes sets no ambient capabilities."""
    context = container.at("securityContext")
    user = context.at("runAsUser").number
    user = pod.at("securityContext", "runAsUser").number if user is None else user
    for added in context.at("capabilities", "add").items():
        if added.text == "IPC_LOCK" and user:
            message = f"adds {added.shown} for user {user}, and Linux gives added capabilities only to root"
            remedy = "Raise the limit of locked memory of the nodes' container runtime, or run as user 0."
            yield added.finding(message, remedy, "nobody")


def _mounts(mounts: Field, volumes: set[str]) -> Iterator[Finding]:
    for mount in mounts.items():
        name, path = mount.at("name"), mount.at("mountPath")
        if name.text not in volumes:
            yield name.finding(
                f"is {name.shown}, and the pod has no volume of this name",
                f"Its volumes are {', '.join(sorted(volumes)) or 'none'}: name one, or add it to them.",
                "pods",
            )
        if not path.text:
            yield path.finding(
                "is missing", "Give the folder of the container where the volume appears.", "api"
            )
        for key in ("subPath", "subPathExpr"):
            inner = mount.at(key).text
            if inner.startswith("/") or ".." in inner.split("/"):
                message = f"is {mount.at(key).shown}, and must be a path below the volume, without '..'"
                yield mount.at(key).finding(message, "Give a relative path.", "pods")
    for path, shared in duplicates(mounts.items(), "mountPath"):
        yield path.finding(f"is '{shared}', the same as in another mount", "Mount one volume there.", "api")


def _environment(env: Field) -> Iterator[Finding]:
    for variable in env.items():
        name, value, source = variable.at("name"), variable.at("value"), variable.at("valueFrom")
        if not name.text or "=" in name.text or not name.text.isascii() or not name.text.isprintable():
            yield name.finding(
                f"is {name.shown}, and the name of a variable must be printable ASCII without '='",
                "Use letters, digits and '_'.",
                "pods",
            )
        if value.is_set and not isinstance(value.value, str):
            yield value.finding(f"is {value.shown}, and must be text", "Write it in quotes.", "api")
        if value.text and source.is_set:
            yield variable.finding(
                f"{name.shown} has both value and valueFrom", "Leave one of them out.", "pods"
            )
        if source.is_set and sum(source.at(key).is_set for key in _ENV_SOURCES) != 1:
            yield source.finding(
                "must name exactly one source", f"Give one of {', '.join(_ENV_SOURCES)}.", "pods"
            )
    for name, shared in duplicates(env.items(), "name"):
        yield name.finding(f"is '{shared}', the same as in another variable", "Set it once.", "api")


def _ports(ports: Field) -> Iterator[Finding]:
    for port in ports.items():
        number, name = port.at("containerPort"), port.at("name")
        if number.number is not None and not 1 <= number.number <= 65535:
            yield number.finding(f"is {number.number}, and a port is 1 to 65535", "Change it.", "pods")
        if name.text and (problem := port_name(name.text)):
            yield name.finding(f"is {name.shown}, and the name of a port {problem}", "Rename it.", "pods")
        yield from _one_of(port, "protocol")
    for name, shared in duplicates(ports.items(), "name"):
        yield name.finding(f"is '{shared}', the same as in another port", "Give each its own name.", "pods")


def _hooks(container: Field) -> Iterator[Finding]:
    for field in filter(lambda each: each.is_set, with_handlers(container)):
        given = [key for key in _HANDLERS if field.at(key).is_set]
        if len(given) != 1:
            yield field.finding(
                f"must have exactly one handler, and has {' and '.join(given) or 'none'}",
                f"Give one of {', '.join(_HANDLERS)}.",
                "pods",
            )
    for probe in ("livenessProbe", "startupProbe"):
        passes = container.at(probe, "successThreshold")
        if passes.number is not None and passes.number != 1:
            yield passes.finding(f"is {passes.number}, and must be 1 for this probe", "Leave it out.", "pods")


# -------------------------------------------------------------------------------------------- tolerations


def _tolerations(tolerations: Field) -> Iterator[Finding]:
    for each in tolerations.items():
        key, operator, value = each.at("key"), each.at("operator"), each.at("value")
        finding: Callable[[str, str], Finding] = partial(operator.finding, by="pods")
        if operator.is_set and operator.value not in ("", "Exists", "Equal"):
            yield finding(f"is {operator.shown}, and must be Exists or Equal", "Name one of them.")
        elif operator.text == "Exists" and value.text:
            yield finding(f"is Exists while value is {value.shown}", "Leave the value out, or use Equal.")
        elif not key.text and operator.text != "Exists":
            yield finding("must be Exists if no key is given", "Give the key of the taint.")
        yield from _one_of(each, "effect")
        if each.at("tolerationSeconds").is_set and each.at("effect").text != "NoExecute":
            seconds = each.at("tolerationSeconds")
            yield seconds.finding("applies only to effect: NoExecute", "Set that effect.", "pods")
