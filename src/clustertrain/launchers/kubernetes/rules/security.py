"""Rules of the Pod Security Standard `restricted`, for every field that it checks.

A namespace enforces the standard by a label. The API server then accepts the RayJob and refuses its pods. The
kit's own pods always meet `restricted`, unless the job mounts a host path.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertrain.launchers.kubernetes.rules.finding import Field, Finding
from clustertrain.launchers.kubernetes.rules.pod import containers

_RULE = "Pod Security 'restricted' requires"
_VOLUMES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
_PROFILES = ("RuntimeDefault", "Localhost")
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
)
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"

# A securityContext that meets the standard, for messages and for patches.
CONTEXT = (
    "securityContext: {runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, "
    "seccompProfile: {type: RuntimeDefault}}"
)


def restricted(template: Field) -> Iterator[Finding]:
    """All rules for a pod template, which has the keys metadata and spec."""
    spec = template.at("spec")
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.at(key).is_true:
            yield _wrong(spec.at(key), "is true", "that it is absent", f"Take {key} out.")
    yield from _volumes(spec.at("volumes"))
    for sysctl in spec.at("securityContext", "sysctls").items():
        if sysctl.at("name").text not in _SYSCTLS:
            yield _wrong(sysctl.at("name"), f"is {sysctl.at('name').shown}", "a safe sysctl", "Remove it.")
    for key, entry in template.at("metadata", "annotations").entries().items():
        if key.startswith(_APPARMOR) and entry.text == "unconfined":
            yield _wrong(entry, "is 'unconfined'", "a profile", "Take the annotation out.")
    yield from _context(spec.at("securityContext"))
    for container in containers(spec):
        yield from _context(container.at("securityContext"))
        yield from _container(container, spec.at("securityContext"))


def added_without_context(where: Field, what: str, remedy: str) -> Finding:
    """A finding: the operator adds a container without a securityContext, so the pod is refused."""
    expected = "allowPrivilegeEscalation: false and capabilities.drop: [ALL] of each container"
    return _wrong(where, f"makes the operator add {what} without a securityContext", expected, remedy)


def _volumes(volumes: Field) -> Iterator[Finding]:
    for volume in volumes.items():
        for kind in volume.entries():
            if kind != "name" and volume.at(kind).is_set and kind not in _VOLUMES:
                remedy = "Use a persistentVolumeClaim."
                expected = f"one of {', '.join(_VOLUMES)}"
                yield _wrong(volume.at(kind), "is not an allowed kind of volume", expected, remedy)


def _context(context: Field) -> Iterator[Finding]:
    """Rules for the fields that the securityContext of a pod and of a container have in common."""
    if context.at("runAsNonRoot").value is False:
        yield _wrong(context.at("runAsNonRoot"), "is false", "true", "Set it to true.")
    if context.at("runAsUser").number == 0:
        yield _wrong(context.at("runAsUser"), "is 0, the root user", "another user", "Give 1000.")
    for key in ("seccompProfile", "appArmorProfile"):
        profile = context.at(key, "type")
        if profile.is_set and profile.text not in _PROFILES:
            expected = " or ".join(_PROFILES)
            yield _wrong(profile, f"is {profile.shown}", expected, "Use RuntimeDefault.")
    labels = context.at("seLinuxOptions")
    if labels.at("type").text not in _SELINUX_TYPES:
        yield _wrong(labels.at("type"), f"is {labels.at('type').shown}", "a container's type", "Remove it.")
    for key in ("user", "role"):
        if labels.at(key).text:
            yield _wrong(labels.at(key), f"is {labels.at(key).shown}", "that it is absent", "Take it out.")
    if context.at("windowsOptions", "hostProcess").is_true:
        yield _wrong(context.at("windowsOptions", "hostProcess"), "is true", "false", "Take it out.")


def _container(container: Field, of_pod: Field) -> Iterator[Finding]:
    context = container.at("securityContext")
    if context.at("allowPrivilegeEscalation").value is not False:
        field = context.at("allowPrivilegeEscalation")
        yield _wrong(field, f"is {_value_text(field)}", "false", f"Give the container {CONTEXT}.")
    if context.at("privileged").is_true:
        yield _wrong(context.at("privileged"), "is true", "false", "Take it out.")
    dropped = [each.text for each in context.at("capabilities", "drop").items()]
    if "ALL" not in dropped:
        field = context.at("capabilities", "drop")
        yield _wrong(field, f"is {', '.join(dropped) or 'missing'}", "ALL in the list", "Give drop: [ALL].")
    for added in context.at("capabilities", "add").items():
        if added.text != "NET_BIND_SERVICE":
            yield _wrong(added, f"adds {added.shown}", "that none is added", "Take it out.")
    if not (context.at("runAsNonRoot").is_set or of_pod.at("runAsNonRoot").is_set):
        field = context.at("runAsNonRoot")
        yield _wrong(field, "is missing here and for the pod", "true", "Give it to the pod or the container.")
    if not (context.at("seccompProfile", "type").is_set or of_pod.at("seccompProfile", "type").is_set):
        field = context.at("seccompProfile")
        remedy = "Give seccompProfile: {type: RuntimeDefault}."
        yield _wrong(field, "is missing here and for the pod", "RuntimeDefault or Localhost", remedy)
    if context.at("procMount").text not in ("", "Default"):
        yield _wrong(
            context.at("procMount"), f"is {context.at('procMount').shown}", "Default", "Take it out."
        )
    yield from _host_access(container)


def _host_access(container: Field) -> Iterator[Finding]:
    """Rules against access through the node: host ports, and hosts that probes and hooks name."""
    for port in container.at("ports").items():
        if port.at("hostPort").number:
            field = port.at("hostPort")
            yield _wrong(
                field, f"is {field.shown}", "that it is absent", "Take it out: each pod has its own address."
            )
    lifecycle = container.at("lifecycle")
    hooks = [*map(container.at, _PROBES), lifecycle.at("postStart"), lifecycle.at("preStop")]
    for hook in hooks:
        for kind in ("httpGet", "tcpSocket"):
            if hook.at(kind, "host").text:
                field = hook.at(kind, "host")
                yield _wrong(
                    field, f"is {field.shown}", "that it is absent", "Take it out: the default is the pod."
                )


def _wrong(field: Field, message: str, expected: str, remedy: str) -> Finding:
    return field.finding(f"{message}, and {_RULE} {expected}", remedy, "pod-security")


def _value_text(field: Field) -> str:
    return field.shown if field.is_set else "missing"
