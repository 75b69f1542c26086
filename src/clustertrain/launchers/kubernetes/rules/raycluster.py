"""Rules for the spec of a Ray cluster: what the KubeRay operator refuses, and mistakes that it accepts.

It is spec.rayClusterSpec of a RayJob, or spec of a RayCluster. The operator reports a refusal in the status
of a RayJob, but only in an event for a RayCluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clustertrain.launchers.kubernetes.rules.finding import Field, Finding, duplicates, texts
from clustertrain.launchers.kubernetes.rules.names import label_value, labels
from clustertrain.launchers.kubernetes.rules.pod import pod_template
from clustertrain.launchers.kubernetes.rules.security import (
    Level,
    added_without_context,
    pod_security,
)

# The fields that each version of the operator added.
NEWER = {
    "KubeRay 1.7": {
        (): ("historyServerOptions", "networkPolicy", "tlsOptions"),
        ("autoscalerOptions",): ("args", "command"),
        ("gcsFaultToleranceOptions",): ("backend", "storage"),
        ("headGroupSpec",): ("ingressOptions",),
        ("workerGroupSpecs",): ("priority",),
    }
}
TOKEN_SINCE, KUBERNETES_TOKEN_SINCE = (2, 52, 0), (2, 55, 0)
_OWN_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")
_AUTOSCALER_V2 = "RAY_enable_autoscaler_v2"
_FT_ANNOTATION = "ray.io/ft-enabled"
_RAY_IMAGES = ("ray", "ray-ml", "ray-llm")
_SAME_VERSION = "Use one version for rayVersion, the head's image and the workers' image."


def cluster_spec(spec: Field, annotations: Field, level: Level) -> Iterator[Finding]:
    """All rules for the spec. `annotations`: of the object that contains it."""
    head, groups = spec.at("headGroupSpec"), spec.at("workerGroupSpecs").items()
    yield from _group(head, "the head's group")
    for group in groups:
        yield from _group(group, f"worker group {group.at('groupName').text or '?'}")
        yield from _replicas(group, spec)
        yield from _idle_timeout(group, spec)
        yield from _suspended(group, spec)
    for name, shared in duplicates(groups, "groupName"):
        message = f"is '{shared}', the same as in another group: the operator cannot distinguish their pods"
        yield name.finding(message, "Give each group its own name.", "nobody")
    yield from _fault_tolerance(spec, annotations)
    yield from _autoscaler(spec, level)
    yield from _token(spec)
    yield from _versions(spec)
    yield from _newer_fields(spec)
    for template in (head.at("template"), *(group.at("template") for group in groups)):
        yield from pod_template(template)
        yield from pod_security(template, level)


def ray_version(text: str) -> tuple[int, int, int] | None:
    """2.60.0 → (2, 60, 0); anything after the numbers is ignored."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def is_autoscaling(spec: Field) -> bool:
    return spec.at("enableInTreeAutoscaling").is_true


def ray_container(group: Field) -> Field:
    """The container that runs Ray: the first, whatever its name."""
    found = group.at("template", "spec", "containers").items()
    return found[0] if found else group.at("template", "spec", "containers", "0")


def _variable(group: Field, name: str) -> Field | None:
    """An environment variable of the Ray container."""
    return next(
        (each for each in ray_container(group).at("env").items() if each.at("name").text == name), None
    )


# ------------------------------------------------------------------------------------------------- groups


def _group(group: Field, which: str) -> Iterator[Finding]:
    parameters, own = group.at("rayStartParams"), group.at("resources")
    found = group.at("template", "spec", "containers")
    if not found.items():
        remedy = "Give one with the job's image: Ray runs in the first container."
        yield found.finding("has no container", remedy, "api" if not found.is_set else "operator")
    yield from texts(parameters)
    both = [key for key in _OWN_RESOURCES if parameters.at(key).text]
    if both and own.entries():
        message = (
            f"is given while rayStartParams has {', '.join(both)}: only one of them may set what {which} has"
        )
        yield own.finding(message, "Leave the rayStartParams out.")
    if parameters.at("labels").is_set:
        message = "is not allowed there"
        yield parameters.at("labels").finding(message, f"Write {group.path}.labels instead.")
    yield from labels(group.at("labels"), "operator")
    yield from _first_container(found)
    for container in found.items()[:1]:
        yield from _image(container.at("image"))


def _first_container(found: Field) -> Iterator[Finding]:
    names = [container.at("name").text for container in found.items()]
    late = [name for name in names[1:] if name.startswith("ray")]
    if late and not names[0].startswith("ray"):
        message = (
            f"begins with {names[0]}, and the operator starts Ray in the first container, not in {late[0]}"
        )
        yield found.finding(message, f"Put {late[0]} first.", "nobody")


def _image(image: Field) -> Iterator[Finding]:
    name = image.text.rpartition("/")[2]
    if name and ":" not in name and "@" not in name:
        message = (
            f"is {image.shown}, without a tag: nodes that pull at different times may run different images"
        )
        yield image.finding(message, "Name a tag or a digest.", "nobody")


def _replicas(group: Field, spec: Field) -> Iterator[Finding]:
    least, most, requested = (group.at(key) for key in ("minReplicas", "maxReplicas", "replicas"))
    for count in (least, most):
        if count.number is not None and count.number < 0:
            yield count.finding(f"is {count.number}, and must not be negative", "Give 0 or more.")
    low, high = least.number or 0, most.number
    if high is not None and low > high >= 0:
        message = f"is {low}, more than maxReplicas, which is {high}"
        yield least.finding(message, "Give maxReplicas the larger of the two.")
    elif requested.number is not None and not low <= requested.number <= (
        high if high is not None else requested.number
    ):
        bounds = f"minReplicas {low} to maxReplicas {'without limit' if high is None else high}"
        message = f"is {requested.number}, outside {bounds}: the operator uses the nearer limit"
        yield requested.finding(message, "Give all three the same number.", "nobody")
    if not requested.is_set and low == 0 and not is_autoscaling(spec):
        message = "is missing, and its default is 0: no worker is ever started"
        yield requested.finding(message, "Give the number of nodes.", "nobody")
    name = group.at("groupName")
    if problem := label_value(name.text):
        yield name.finding(f"is {name.shown}, and a label of its pods {problem}", "Rename it.", "pods")


def _idle_timeout(group: Field, spec: Field) -> Iterator[Finding]:
    idle, variable = group.at("idleTimeoutSeconds"), _variable(spec.at("headGroupSpec"), _AUTOSCALER_V2)
    if idle.number is None:
        return
    if idle.number < 0:
        yield idle.finding(f"is {idle.number}, and must not be negative", "Give seconds, such as 60.")
    elif spec.at("autoscalerOptions", "version").text != "v2" and not _is_on(variable):
        message = f"is {idle.number}, which applies only with autoscaler v2"
        yield idle.finding(message, "Set autoscalerOptions.version: v2, or leave it out.")


def _suspended(group: Field, spec: Field) -> Iterator[Finding]:
    if group.at("suspend").is_true and is_autoscaling(spec):
        message = "is true while enableInTreeAutoscaling is true"
        yield group.at("suspend").finding(message, "Leave one of them out.")


# ------------------------------------------------------------------------------ the cluster as a whole


def _fault_tolerance(spec: Field, annotations: Field) -> Iterator[Finding]:
    head, options = spec.at("headGroupSpec"), spec.at("gcsFaultToleranceOptions")
    instead = "Give it only in gcsFaultToleranceOptions."
    if annotations.at(_FT_ANNOTATION).text and options.is_set:
        message = f"is given while the annotation {_FT_ANNOTATION} is set"
        yield options.finding(message, f"Take the annotation {_FT_ANNOTATION} out.")
    address = _variable(head, "RAY_REDIS_ADDRESS")
    if address and not options.is_set and annotations.at(_FT_ANNOTATION).text.lower() != "true":
        message = "RAY_REDIS_ADDRESS is set without gcsFaultToleranceOptions"
        yield address.finding(message, "Give gcsFaultToleranceOptions.redisAddress instead.")
    refused = ["REDIS_USERNAME"]
    if options.is_set:
        refused += ["REDIS_PASSWORD", "RAY_REDIS_ADDRESS"]
        password, storage = "redis-password", "ray.io/external-storage-namespace"
        if head.at("rayStartParams", password).text:
            yield head.at("rayStartParams", password).finding(
                "is given together with gcsFaultToleranceOptions", instead
            )
        if annotations.at(storage).text:
            yield annotations.at(storage).finding("is given together with gcsFaultToleranceOptions", instead)
    for name in refused:
        if variable := _variable(head, name):
            yield variable.finding(f"{name} is set in the head's environment", instead)
    if head.at("rayStartParams", "redis-username").text:
        yield head.at("rayStartParams", "redis-username").finding("is not allowed there", instead)


def _autoscaler(spec: Field, level: Level) -> Iterator[Finding]:
    options, head = spec.at("autoscalerOptions"), spec.at("headGroupSpec")
    variable, idle = _variable(head, _AUTOSCALER_V2), options.at("idleTimeoutSeconds")
    if idle.number is not None and idle.number < 0:
        yield idle.finding(f"is {idle.number}, and must not be negative", "Give seconds, such as 60.")
    if not is_autoscaling(spec):
        if variable and _is_on(variable):
            message = f"{_AUTOSCALER_V2} is set while enableInTreeAutoscaling is not true"
            yield variable.finding(message, "Leave the variable out.")
        return
    if variable and options.at("version").is_set:
        yield variable.finding(
            f"{_AUTOSCALER_V2} is set together with autoscalerOptions.version", "Leave the variable out."
        )
    if options.at("version").text == "v2":
        for group in (head, *spec.at("workerGroupSpecs").items()):
            policy = group.at("template", "spec", "restartPolicy")
            if policy.text not in ("", "Never"):
                message = f"is {policy.shown}, and must be Never with autoscaler v2"
                yield policy.finding(message, "Leave it out.")
    if level == "restricted" and not options.at("securityContext").is_set:
        remedy = "Give autoscalerOptions.securityContext, as the head's container has it."
        where = spec.at("enableInTreeAutoscaling")
        yield added_without_context(where, "a container for the autoscaler", remedy)


def _is_on(variable: Field | None) -> bool:
    return variable is not None and variable.at("value").text in ("1", "true")


def _token(spec: Field) -> Iterator[Finding]:
    options, version = spec.at("authOptions"), spec.at("rayVersion")
    by_kubernetes = options.at("enableK8sTokenAuth")
    if options.at("mode").text != "token":
        if by_kubernetes.is_true:
            message = "is true while authOptions.mode is not 'token'"
            yield by_kubernetes.finding(message, "Set authOptions.mode: token.")
        else:
            message = (
                "is not 'token': anyone who can connect to port 8265 or 6379 of the head can run code there"
            )
            remedy = "Set authOptions: {mode: token}; the operator creates the Secret."
            yield options.at("mode").finding(message, remedy, "nobody")
        return
    needed = KUBERNETES_TOKEN_SINCE if by_kubernetes.is_true else TOKEN_SINCE
    found = ray_version(version.text)
    least = ".".join(map(str, needed))
    if found is None:
        message = f"is {version.shown if version.is_set else 'missing'}, and authOptions.mode is token, "
        yield version.finding(
            f"{message}which needs Ray {least} or later", "Give the image's version of Ray."
        )
    elif found < needed:
        message = f"is {version.text}, and token authentication of this kind needs Ray {least} or later"
        yield version.finding(message, "Use an image with a newer Ray.")
    if by_kubernetes.is_true and options.at("secretName").text:
        message = "is given while enableK8sTokenAuth is true"
        yield options.at("secretName").finding(message, "Leave one of them out.")


def _versions(spec: Field) -> Iterator[Finding]:
    """Compare rayVersion with the tags of Ray's own images. Tags of other images are not versions of Ray."""
    stated = ray_version(spec.at("rayVersion").text)
    for group in (spec.at("headGroupSpec"), *spec.at("workerGroupSpecs").items()):
        image = ray_container(group).at("image")
        name, _, tag = image.text.rpartition("/")[2].partition(":")
        in_image = ray_version(tag) if name in _RAY_IMAGES else None
        if stated and in_image and stated != in_image:
            message = (
                f"is {image.shown}, and rayVersion is {spec.at('rayVersion').shown}: they are incompatible"
            )
            yield image.finding(message, _SAME_VERSION, "nobody")


def _newer_fields(spec: Field) -> Iterator[Finding]:
    for version, sections in NEWER.items():
        for path, keys in sections.items():
            section = spec.at(*path)
            for field in section.items() or [section]:
                for newer in (field.at(key) for key in keys):
                    if newer.is_set:
                        remedy = f"Leave it out if the cluster has an operator before {version}."
                        yield newer.finding(f"is new in {version}", remedy, "api", since=version)
