"""The rules for manifests, with the Pod Security Standard that their namespaces enforce.

A namespace enforces a standard by a label. It comes from the option `--pod-security`, a Namespace in the same
file, or the cluster. If none of them is there, it is unknown, and nothing is refused because of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.kubectl import Kubectl, NoAnswer
from clustertrain.launchers.kubernetes.render.manifests import Manifest
from clustertrain.launchers.kubernetes.rules.check import check, refusals, to_error
from clustertrain.launchers.kubernetes.rules.finding import Finding
from clustertrain.launchers.kubernetes.rules.schemas import VERSION
from clustertrain.launchers.kubernetes.rules.security import ENFORCE_LABEL, LEVELS, Level
from clustertrain.launchers.shell import CommandMissing


def check_in_namespaces(
    objects: Sequence[Manifest], kubectl: Kubectl, option: Level | None = None, version: str | None = None
) -> tuple[list[Finding], list[str]]:
    """Check manifests by the rules. Returns the findings that are no refusals, and notes.

    Args:
        option: the standard of every namespace; None: the one of the file or of the cluster.
        version: of Kubernetes, for its schemas; None: the version of the cluster.

    Raises:
        JobError: an object would be refused.
    """
    levels = _Levels(kubectl, option, objects)
    version = version or _server_version(kubectl) or VERSION
    findings = check(objects, enforced=levels.enforced, version=version)
    if refusals(findings):
        raise to_error(findings)
    return findings, levels.notes(objects)


def _server_version(kubectl: Kubectl) -> str | None:
    """The version of the cluster, such as 1.34; None if none answers. EKS writes its minor as `34+`."""
    try:
        server = json.loads(kubectl("version", "--output=json").stdout).get("serverVersion", {})
    except (ClusterError, CommandMissing, ValueError):
        return None
    minor = re.match(r"\d+", str(server.get("minor", "")))
    return f"{server.get('major')}.{minor[0]}" if minor else None


class _Levels:
    """The Pod Security Standard that each namespace enforces: by the option, the file, or the cluster."""

    def __init__(self, kubectl: Kubectl, option: Level | None, objects: Sequence[Manifest]) -> None:
        self._kubectl = kubectl
        self._option = option
        self._of_file = {
            _text(each, "metadata", "name"): _level(each)
            for each in objects
            if (_text(each, "apiVersion"), _text(each, "kind")) == ("v1", "Namespace")
        }
        self._of_cluster: dict[str, Level | None] = {}
        self._reaches_cluster = True

    def enforced(self, namespace: str) -> Level:
        """The standard; `privileged`, which allows everything, if it is unknown."""
        return self._known(namespace) or "privileged"

    def notes(self, objects: Sequence[Manifest]) -> list[str]:
        """A line if pods would be refused in a namespace of which the standard is unknown."""

        def strictest(namespace: str) -> Level:
            return "restricted" if self._known(namespace) is None else "privileged"

        # Without schemas, which have no rules of Pod Security and take time to load.
        findings = check(objects, enforced=strictest, version="")
        found = [each for each in findings if each.by == "pod-security"]
        if not found:
            return []
        return [
            "note: it is unknown which Pod Security Standard the namespace enforces; one that enforces "
            f"'restricted' refuses {len(found)} fields: --pod-security restricted shows them"
        ]

    def _known(self, namespace: str) -> Level | None:
        if self._option is not None:
            return self._option
        if namespace in self._of_file:
            return self._of_file[namespace]
        if namespace not in self._of_cluster:
            self._of_cluster[namespace] = self._read(namespace) if self._reaches_cluster else None
        return self._of_cluster[namespace]

    def _read(self, namespace: str) -> Level | None:
        try:
            name = namespace or self._kubectl.namespace or self._current()
            return _level(self._kubectl.get("namespace", name))
        except (CommandMissing, NoAnswer):
            self._reaches_cluster = False
        except ClusterError:
            pass  # it does not exist, or the account may not read it
        return None

    def _current(self) -> str:
        view = self._kubectl("config", "view", "--minify", "--output=jsonpath={..namespace}")
        return view.stdout.strip() or "default"


def _level(namespace: Mapping[str, Any]) -> Level:
    text = _text(namespace, "metadata", "labels", ENFORCE_LABEL)
    return next((level for level in LEVELS if level == text), "privileged")


def _text(value: Any, *keys: str) -> str:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""
