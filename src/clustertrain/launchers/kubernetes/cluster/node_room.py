"""How many of a run's worker pods the nodes of a cluster hold. Pure arithmetic, for pod_layout.py.

Nodes count as empty, since the pods that run there now will end. Whether a run can start is the scheduler's
decision: `submit` prints its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from clustertrain.launchers.kubernetes.render.fields import at, items, mapping
from clustertrain.units import size_bytes

Object = Mapping[str, Any]
Amounts = Mapping[str, Decimal]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TEMPORARY_TAINTS = "node.kubernetes.io/"  # temporary taints, such as not-ready and unschedulable


def requests_of(pod: Object) -> Amounts:
    """The requests of a pod: the sum of its containers. The init container with the code adds nothing: it has
    those of the first container."""
    total: dict[str, Decimal] = {}
    for container in items(pod, "containers"):
        for name, amount in mapping(container, "resources", "requests").items():
            total[name] = total.get(name, Decimal(0)) + quantity(amount)
    return total


def quantity(value: object) -> Decimal:
    """The number of a quantity as the API server writes it, such as 500m, 16Gi or 4; 0 if it is none."""
    text = str(value)
    try:
        return Decimal(int(text[:-1])) / 1000 if text.endswith("m") else Decimal(size_bytes(text))
    except ValueError:
        return Decimal(0)


def allocatable(node: Object, name: str) -> Decimal:
    return quantity(at(node, "status", "allocatable", name))


def eligible_nodes(pod: Object, nodes: Sequence[Object]) -> list[Object]:
    """The nodes with the labels that the pod requires, by its selector and its node affinity, and only with
    taints that it tolerates."""
    return [node for node in nodes if _has_labels(node, pod) and not _is_tainted(node, pod)]


def _has_labels(node: Object, pod: Object) -> bool:
    labels = mapping(node, "metadata", "labels")
    terms = items(pod, "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    is_selected = all(labels.get(key) == value for key, value in mapping(pod, "nodeSelector").items())
    return is_selected and (not terms or any(_is_in(term, labels) for term in terms))


def _is_in(term: Object, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is in a term of a node affinity. The rarer rules, such as Gt and
    matchFields, are left to the scheduler."""

    def fulfils(rule: Object) -> bool:
        value = labels.get(str(at(rule, "key")))
        return {
            "In": value in items(rule, "values"),
            "NotIn": value not in items(rule, "values"),
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }.get(str(at(rule, "operator")), True)

    return all(map(fulfils, items(term, "matchExpressions")))


def _is_tainted(node: Object, pod: Object) -> bool:
    """Whether the node has a permanent taint that the pod does not tolerate."""
    hard = [
        taint
        for taint in items(node, "spec", "taints")
        if taint["effect"] in ("NoSchedule", "NoExecute") and not taint["key"].startswith(_TEMPORARY_TAINTS)
    ]
    return any(not any(_tolerates(each, taint) for each in items(pod, "tolerations")) for taint in hard)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if any(at(toleration, key) not in (None, "", taint[key]) for key in ("effect", "key")):
        return False
    value = at(toleration, "value") or ""
    return at(toleration, "operator") == "Exists" or bool(value == taint.get("value", ""))


def how_many_fit(pod: Object, node: Object) -> int:
    """How many of the pods fit on the node while it is empty. One with the network and the ports of its node
    fits once."""
    amounts = {**requests_of(pod), "pods": Decimal(1)}
    held = min(int(allocatable(node, name) // amount) for name, amount in amounts.items() if amount)
    return min(held, 1) if at(pod, "hostNetwork") is True else held


def pods_held(pod: Object, nodes: Sequence[Object]) -> int:
    """How many of the pods fit on all nodes together while these are empty."""
    return sum(how_many_fit(pod, node) for node in eligible_nodes(pod, nodes))
