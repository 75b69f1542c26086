"""Whether the nodes and the quotas of a cluster can hold a run: arithmetic alone.

A pod that no node can hold waits until the deadline ends the run, and so does one that a quota never admits.
What other pods take of the nodes just now is left aside: they will end. The scheduler itself answers only for
pods that are there: no dry run schedules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from clustertrain.launchers.kubernetes.render.pods import memory_text
from clustertrain.launchers.kubernetes.rules.names import quantity

Object = Mapping[str, Any]
Amounts = Mapping[str, Decimal]
_OF_A_MOMENT = "node.kubernetes.io/"  # taints such as not-ready and unschedulable: they go by themselves
_ON_DEMAND = (
    "Where an autoscaler would add such a node: `clustertrain render --to kubernetes … | kubectl apply -f -`"
)


@dataclass(frozen=True)
class Need:
    """Pods of one kind, and what the scheduler looks at. `limits` count for quotas alone."""

    role: str
    pods: int
    requests: Amounts
    limits: Amounts
    selector: Mapping[str, str]
    tolerations: tuple[Object, ...] = ()

    @property
    def text(self) -> str:
        return {"head": "The head's pod", "submitter": "The submitter's pod"}.get(self.role, "A worker's pod")


def needs_of(rayjob: Object) -> list[Need]:
    """The least that must be there for a RayJob to begin."""
    spec = rayjob["spec"]
    cluster = spec["rayClusterSpec"]
    found = [_need("head", 1, cluster["headGroupSpec"]["template"]["spec"])]
    for group in cluster.get("workerGroupSpecs", ()):
        least = group.get("minReplicas", group.get("replicas", 1))
        found.append(_need(str(group["groupName"]), int(least), group["template"]["spec"]))
    if "submitterPodTemplate" in spec:
        found.append(_need("submitter", 1, spec["submitterPodTemplate"]["spec"]))
    return found


def need_of_pod(pod: Object) -> Need:
    """What a pod that is there takes of a quota."""
    return _need("pod", 1, pod["spec"])


def _need(role: str, pods: int, spec: Object) -> Need:
    tolerations = tuple(spec.get("tolerations", ()))
    requests, limits = (_amounts(spec, kind) for kind in ("requests", "limits"))
    return Need(role, pods, requests, limits, spec.get("nodeSelector", {}), tolerations)


def _amounts(spec: Object, kind: str) -> dict[str, Decimal]:
    """Of a pod: all its containers together, and at least what its greediest init container asks for."""
    total: dict[str, Decimal] = {}
    for container in spec["containers"]:
        for name, amount in _of_container(container, kind).items():
            total[name] = total.get(name, Decimal(0)) + amount
    for container in spec.get("initContainers", ()):
        for name, amount in _of_container(container, kind).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def _of_container(container: Object, kind: str) -> dict[str, Decimal]:
    """What is limited and not requested is requested as it is limited."""
    resources = container.get("resources", {})
    limits = resources.get("limits", {})
    written = {**limits, **resources.get("requests", {})} if kind == "requests" else limits
    return {name: amount for name, value in written.items() if (amount := quantity(value)) is not None}


# ------------------------------------------------------------------------------------------------- the nodes


def why_no_nodes(needs: Sequence[Need], nodes: Sequence[Object]) -> str | None:
    """Why no node, or too few, can ever hold the pods; None where they can."""
    return next((text for need in needs if (text := _why_no_node(need, nodes)) is not None), None)


def _why_no_node(need: Need, nodes: Sequence[Object]) -> str | None:
    labelled = [node for node in nodes if _has_labels(node, need.selector)]
    if not labelled:
        wanted = ", ".join(f"{key}={value}" for key, value in need.selector.items())
        shown = "`kubectl get nodes --show-labels` shows what they have."
        return f"None of {len(nodes)} nodes has {wanted} (kubernetes.node_selector).\n{shown}"
    eligible = [node for node in labelled if not _repelling(node, need)]
    if not eligible:
        taints = sorted({taint for node in labelled for taint in _repelling(node, need)})
        return (
            f"{need.text} may run on none of {len(labelled)} nodes, whose taint is {', '.join(taints)}.\n"
            "Name it under kubernetes.tolerations, or choose other nodes with kubernetes.node_selector."
        )
    for name, amount in need.requests.items():
        most = max(_allocatable(node, name) for node in eligible)
        if most < amount:
            has = "no node has any" if most == 0 else f"the largest node has {amount_text(name, most)}"
            return f"{need.text} asks for {name} {amount_text(name, amount)}, and {has}.\n{_ON_DEMAND}"
    held = sum(_fits(need, node) for node in eligible)
    asked = _amounts_text(need.requests)
    if held == 0:
        return f"{need.text} asks for {asked}, and no node has all of it.\n{_ON_DEMAND}"
    if held < need.pods:
        return (
            f"{need.pods} pods of workers ask for {asked} each, and all nodes together hold {held} of them.\n"
            f"{_ON_DEMAND}"
        )
    return None


def _has_labels(node: Object, selector: Mapping[str, str]) -> bool:
    labels = node["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in selector.items())


def _repelling(node: Object, need: Need) -> list[str]:
    """The taints that keep the pods away for good."""
    taints = [t for t in node["spec"].get("taints", ()) if not t["key"].startswith(_OF_A_MOMENT)]
    hard = [t for t in taints if t["effect"] in ("NoSchedule", "NoExecute")]
    return [_taint_text(t) for t in hard if not any(_tolerates(each, t) for each in need.tolerations)]


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _taint_text(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _allocatable(node: Object, name: str) -> Decimal:
    return _amount(node["status"].get("allocatable", {}).get(name))


def _fits(need: Need, node: Object) -> int:
    """How many of the pods an empty node holds."""
    amounts = {**need.requests, "pods": Decimal(1)}
    return min(int(_allocatable(node, name) // amount) for name, amount in amounts.items() if amount)


# ------------------------------------------------------------------------------------------------ the quotas


def why_no_quota(needs: Sequence[Need], quotas: Sequence[Object], own: Sequence[Need]) -> str | None:
    """Which quota cannot admit the pods; None where each can.

    Args:
        own: pods of this run that are there, and will go before it starts.
    """
    for quota in quotas:
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue  # it counts some pods and not others
        used = quota.get("status", {}).get("used", {})
        for key, hard in quota["spec"].get("hard", {}).items():
            needed = [(need, _of_quota(need, key)) for need in needs]
            total = Decimal(sum(need.pods * amount for need, amount in needed))
            returned = Decimal(sum(_of_quota(need, key) for need in own))
            limit, taken = _amount(hard), _amount(used.get(key)) - returned
            if total and limit - taken < total:
                left, all_of_it, gone = (amount_text(key, x) for x in (limit - taken, limit, taken))
                return (
                    f"ResourceQuota {quota['metadata']['name']} has {left} of {key} left "
                    f"({all_of_it} - {gone} used), and the run needs "
                    f"{' + '.join(_parts(needed, key))} = {amount_text(key, total)}.\n"
                    "Ask for less under resources and kubernetes.head, or wait until other runs have ended."
                )
    return None


def _amount(value: object) -> Decimal:
    return quantity(value) or Decimal(0)


def _of_quota(need: Need, key: str) -> Decimal:
    """What one of the pods counts under a key of a quota; 0 for keys that are not of pods."""
    if key in ("pods", "count/pods"):
        return Decimal(1)
    if key.startswith("limits."):
        return need.limits.get(key.removeprefix("limits."), Decimal(0))
    return need.requests.get(key.removeprefix("requests."), Decimal(0))


def _parts(needed: Sequence[tuple[Need, Decimal]], key: str) -> Iterator[str]:
    for need, amount in needed:
        times = f"{need.pods} × " if need.pods != 1 else ""
        if amount:
            yield f"{times}{amount_text(key, amount)} ({need.role})"


def amount_text(name: str, amount: Decimal) -> str:
    """As Kubernetes would write it: memory in Gi or Mi, what else there is as a number."""
    is_bytes = name.rpartition(".")[2] in ("memory", "storage", "ephemeral-storage")
    if is_bytes and amount and amount == int(amount):
        tenths = amount * 10 / 2**30
        return memory_text(int(amount)) if amount % 2**20 == 0 else f"{float(tenths) / 10:.2f}Gi"
    return f"{amount.normalize():f}"


def _amounts_text(amounts: Amounts) -> str:
    return ", ".join(f"{name} {amount_text(name, amount)}" for name, amount in amounts.items())
