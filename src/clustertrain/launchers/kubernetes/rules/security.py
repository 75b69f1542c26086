"""Rules of the Pod Security Standards `baseline` and `restricted`, for every field that they check.

A namespace enforces a standard by a label. The API server then accepts the RayJob and refuses its pods. The
kit's own pods always meet `restricted`, unless the job asks for more: `allow_host_path`, `host_network`,
`worker_capabilities`, or root by `run_as`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from clustertrain.launchers.kubernetes.rules.finding import Field, Finding
from clustertrain.launchers.kubernetes.rules.pod import containers
from clustertrain.launchers.kubernetes.rules.pod_values import with_handlers

Level = Literal["privileged", "baseline", "restricted"]
LEVELS: tuple[Level, ...] = get_args(Level)
ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"
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
_CAPABILITIES = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
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
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"

# A securityContext that meets the standard, for messages and for patches.
CONTEXT = (
    "securityContext: {runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, "
    "seccompProfile: {type: RuntimeDefault}}"
)


def pod_security(template: Field, level: Level) -> Iterator[Finding]:
    """All rules of a standard for a pod template, which has the keys metadata and spec."""
    if level == "privileged":
        return
    yield from _baseline(template, level)
    if level == "restricted":
        yield from _restricted(template.at("spec"))


def added_without_context(where: Field, what: str, remedy: str) -> Finding:
    """A finding: the operator adds a container without a securityContext, so the pod is refused."""
    expected = "allowPrivilegeEscalation: false and capabilities.drop: [ALL] of each container"
    return _wrong(where, f"makes the operator add {what} without a securityContext", expected, remedy)


# ---------------------------------------------------------------------------------------------- baseline


def _baseline(template: Field, level: Level) -> Iterator[Finding]:
    spec = template.at("spec")
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.at(key).is_true:
            named = " (kubernetes.host_network)" if key == "hostNetwork" else ""
            yield _wrong(spec.at(key), "is true", "that it is absent", f"Take {key} out{named}.", "baseline")
    for volume in spec.at("volumes").items():
        if volume.at("hostPath").is_set:
            yield _volume(volume.at("hostPath"), "another kind", "baseline")
    for sysctl in spec.at("securityContext", "sysctls").items():
        name = sysctl.at("name")
        if name.text not in _SYSCTLS:
            yield _wrong(name, f"is {name.shown}", "a safe sysctl", "Remove it.", "baseline")
    for key, entry in template.at("metadata", "annotations").entries().items():
        if key.startswith(_APPARMOR) and entry.text == "unconfined":
            yield _wrong(entry, "is 'unconfined'", "a profile", "Take the annotation out.", "baseline")
    yield from _context(spec.at("securityContext"))
    for container in containers(spec):
        context = container.at("securityContext")
        yield from _context(context)
        if context.at("privileged").is_true:
            yield _wrong(context.at("privileged"), "is true", "false", "Take it out.", "baseline")
        mount = context.at("procMount")
        if mount.text not in ("", "Default"):
            yield _wrong(mount, f"is {mount.shown}", "Default", "Take it out.", "baseline")
        yield from _added_capabilities(context.at("capabilities", "add"), level)
        yield from _host_access(container)


def _context(context: Field) -> Iterator[Finding]:
    """Rules for the fields that the securityContext of a pod and of a container have in common."""
    for key in ("seccompProfile", "appArmorProfile"):
        profile = context.at(key, "type")
        if profile.is_set and profile.text not in _PROFILES:
            expected = " or ".join(_PROFILES)
            yield _wrong(profile, f"is {profile.shown}", expected, "Use RuntimeDefault.", "baseline")
    labels = context.at("seLinuxOptions")
    kind = labels.at("type")
    if kind.text not in _SELINUX_TYPES:
        yield _wrong(kind, f"is {kind.shown}", "a container's type", "Remove it.", "baseline")
    for field in (labels.at("user"), labels.at("role")):
        if field.text:
            yield _wrong(field, f"is {field.shown}", "that it is absent", "Take it out.", "baseline")
    if context.at("windowsOptions", "hostProcess").is_true:
        host = context.at("windowsOptions", "hostProcess")
        yield _wrong(host, "is true", "false", "Take it out.", "baseline")


def _added_capabilities(added: Field, level: Level) -> Iterator[Finding]:
    for each in added.items():
        if each.text not in _CAPABILITIES:
            remedy = "Take it out (kubernetes.worker_capabilities)."
            yield _wrong(each, f"adds {each.shown}", "that it is not added", remedy, "baseline")
        elif level == "restricted" and each.text != "NET_BIND_SERVICE":
            yield _wrong(each, f"adds {each.shown}", "that none is added", "Take it out.")


def _host_access(container: Field) -> Iterator[Finding]:
    """Rules against access through the node: host ports, and hosts that probes and hooks name."""
    for port in container.at("ports").items():
        if port.at("hostPort").number:
            field, remedy = port.at("hostPort"), "Take it out: each pod has its own address."
            yield _wrong(field, f"is {field.shown}", "that it is absent", remedy, "baseline")
    for each in with_handlers(container):
        for kind in ("httpGet", "tcpSocket"):
            if each.at(kind, "host").text:
                field, remedy = each.at(kind, "host"), "Take it out: the default is the pod."
                yield _wrong(field, f"is {field.shown}", "that it is absent", remedy, "baseline")


# -------------------------------------------------------------------------------- restricted, in addition


def _restricted(spec: Field) -> Iterator[Finding]:
    for volume in spec.at("volumes").items():
        for kind in volume.entries():
            if volume.at(kind).is_set and kind not in ("name", "hostPath", *_VOLUMES):
                yield _volume(volume.at(kind), f"one of {', '.join(_VOLUMES)}", "restricted")
    of_pod = spec.at("securityContext")
    yield from _no_root(of_pod)
    for container in containers(spec):
        context = container.at("securityContext")
        yield from _no_root(context)
        yield from _container(context, of_pod)


def _no_root(context: Field) -> Iterator[Finding]:
    if context.at("runAsNonRoot").value is False:
        yield _wrong(context.at("runAsNonRoot"), "is false", "true", "Set it to true.")
    if context.at("runAsUser").number == 0:
        yield _wrong(context.at("runAsUser"), "is 0, the root user", "another user", "Give 1000.")


def _container(context: Field, of_pod: Field) -> Iterator[Finding]:
    if context.at("allowPrivilegeEscalation").value is not False:
        field = context.at("allowPrivilegeEscalation")
        yield _wrong(field, f"is {_value_text(field)}", "false", f"Give the container {CONTEXT}.")
    dropped = [each.text for each in context.at("capabilities", "drop").items()]
    if "ALL" not in dropped:
        field = context.at("capabilities", "drop")
        yield _wrong(field, f"is {', '.join(dropped) or 'missing'}", "ALL in the list", "Give drop: [ALL].")
    if not (context.at("runAsNonRoot").is_set or of_pod.at("runAsNonRoot").is_set):
        field = context.at("runAsNonRoot")
        yield _wrong(field, "is missing here and for the pod", "true", "Give it to the pod or the container.")
    if not (context.at("seccompProfile", "type").is_set or of_pod.at("seccompProfile", "type").is_set):
        field = context.at("seccompProfile")
        remedy = "Give seccompProfile: {type: RuntimeDefault}."
        yield _wrong(field, "is missing here and for the pod", "RuntimeDefault or Localhost", remedy)


def _volume(field: Field, expected: str, standard: Level) -> Finding:
    remedy = "Use a persistentVolumeClaim."
    return _wrong(field, "is not an allowed kind of volume", expected, remedy, standard)


def _wrong(field: Field, message: str, expected: str, remedy: str, standard: Level = "restricted") -> Finding:
    """`standard`: the weaker one of those that have the rule."""
    rule = f"Pod Security '{standard}' requires"
    return field.finding(f"{message}, and {rule} {expected}", remedy, "pod-security")


def _value_text(field: Field) -> str:
    return field.shown if field.is_set else "missing"
