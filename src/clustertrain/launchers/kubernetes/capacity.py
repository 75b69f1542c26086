"""Whether the nodes of a cluster can hold a run. Pure arithmetic.

If no node can hold a pod, the run waits until its deadline. Nodes count as empty, since the pods that run
there now will end. A dry run does not show this, because it does not schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from clustertrain.launchers.kubernetes.render.amounts import memory_text
from clustertrain.launchers.kubernetes.rules.names import quantity
from clustertrain.run.command_line import UNKNOWN, CommandLine

Object = Mapping[str, Any]
Amounts = Mapping[str, Decimal]
_TEMPORARY_TAINTS = "node.kubernetes.io/"  # temporary taints, such as not-ready and unschedulable


@dataclass(frozen=True)
class PodGroup:
    """Pods of one kind, and what each of them requests of a node. `limits` count only for quotas. With
    `one_per_node` they use the network of their node, and its ports only once."""

    role: str
    pods: int
    requests: Amounts
    limits: Amounts
    selector: Mapping[str, str]
    tolerations: tuple[Object, ...] = ()
    one_per_node: bool = False

    @property
    def text(self) -> str:
        return {"head": "The head's pod", "submitter": "The submitter's pod"}.get(self.role, "A worker's pod")


def pod_groups_of(rayjob: Object) -> list[PodGroup]:
    """The pods that a RayJob needs to start: head, workers, submitter. KubeRay submits Ray's job when all
    `replicas` of each worker group run, not only its `minReplicas`."""
    spec = rayjob["spec"]
    cluster = spec["rayClusterSpec"]
    found = [_group("head", 1, cluster["headGroupSpec"]["template"]["spec"])]
    for group in cluster.get("workerGroupSpecs", ()):
        replicas = group.get("replicas", group.get("minReplicas", 1))
        found.append(_group(str(group["groupName"]), int(replicas), group["template"]["spec"]))
    if "submitterPodTemplate" in spec:
        found.append(_group("submitter", 1, spec["submitterPodTemplate"]["spec"]))
    return found


def group_of_pod(pod: Object) -> PodGroup:
    """The group of one existing pod, for what it uses of a quota."""
    return _group("pod", 1, pod["spec"])


def _group(role: str, pods: int, spec: Object) -> PodGroup:
    tolerations = tuple(spec.get("tolerations", ()))
    requests, limits = (_amounts(spec, kind) for kind in ("requests", "limits"))
    selector, one_per_node = spec.get("nodeSelector", {}), spec.get("hostNetwork") is True
    return PodGroup(role, pods, requests, limits, selector, tolerations, one_per_node)


def _amounts(spec: Object, kind: str) -> dict[str, Decimal]:
    """The amounts of one pod: the sum of its containers, or its largest init container if that is more."""
    total: dict[str, Decimal] = {}
    for container in spec["containers"]:
        for name, amount in _container_amounts(container, kind).items():
            total[name] = total.get(name, Decimal(0)) + amount
    for container in spec.get("initContainers", ()):
        for name, amount in _container_amounts(container, kind).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def _container_amounts(container: Object, kind: str) -> dict[str, Decimal]:
    """The amounts of one container. A resource with a limit and no request has its limit as the request."""
    resources = container.get("resources", {})
    limits = resources.get("limits", {})
    written = {**limits, **resources.get("requests", {})} if kind == "requests" else limits
    return {name: amount for name, value in written.items() if (amount := quantity(value)) is not None}


# ------------------------------------------------------------------------------------------------- the nodes


def why_no_nodes(
    groups: Sequence[PodGroup], nodes: Sequence[Object], command: CommandLine = UNKNOWN
) -> str | None:
    """Why the nodes can never hold all of the pods; None if they can. `command` starts the run."""
    remedy = f"If an autoscaler would add such a node: `{command} --set kubernetes.autoscaled=true`."
    whys = (_why_no_node(group, nodes, remedy) for group in groups)
    return next((text for text in whys if text is not None), None)


def _why_no_node(group: PodGroup, nodes: Sequence[Object], remedy: str) -> str | None:
    labelled = [node for node in nodes if _has_labels(node, group.selector)]
    if not labelled:
        selector = ", ".join(f"{key}={value}" for key, value in group.selector.items())
        shown = "`kubectl get nodes --show-labels` shows their labels."
        return f"None of {len(nodes)} nodes has {selector} (kubernetes.node_selector).\n{shown}"
    eligible = eligible_nodes(group, labelled)
    if not eligible:
        taints = sorted({taint for node in labelled for taint in _untolerated_taints(node, group)})
        return (
            f"{group.text} may run on none of {len(labelled)} nodes: their taints are {', '.join(taints)}.\n"
            "Tolerate them under kubernetes.tolerations, or choose other nodes with kubernetes.node_selector."
        )
    for name, amount in group.requests.items():
        most = max(allocatable(node, name) for node in eligible)
        if most < amount:
            has = "no node has any" if most == 0 else f"the largest node has {amount_text(name, most)}"
            return f"{group.text} requests {name} {amount_text(name, amount)}, and {has}.\n{remedy}"
    held = sum(how_many_fit(group, node) for node in eligible)
    requested = _amounts_text(group.requests)
    if held == 0:
        return f"{group.text} requests {requested}, and no node has all of it.\n{remedy}"
    if held < group.pods:
        return (
            f"{group.pods} worker pods request {requested} each, and all nodes together can hold {held} of "
            f"them{', one on a node (kubernetes.host_network)' if group.one_per_node else ''}.\n{remedy}"
        )
    return None


def _has_labels(node: Object, selector: Mapping[str, str]) -> bool:
    labels = node["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in selector.items())


def _untolerated_taints(node: Object, group: PodGroup) -> list[str]:
    """The permanent taints of a node that the pods do not tolerate."""
    taints = [t for t in node["spec"].get("taints", ()) if not t["key"].startswith(_TEMPORARY_TAINTS)]
    hard = [t for t in taints if t["effect"] in ("NoSchedule", "NoExecute")]
    return [_taint_text(t) for t in hard if not any(_tolerates(each, t) for each in group.tolerations)]


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _taint_text(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def eligible_nodes(group: PodGroup, nodes: Sequence[Object]) -> list[Object]:
    """The nodes with the labels that the pods require, and only with taints that they tolerate."""
    labelled = [node for node in nodes if _has_labels(node, group.selector)]
    return [node for node in labelled if not _untolerated_taints(node, group)]


def allocatable(node: Object, name: str) -> Decimal:
    return amount_of(node["status"].get("allocatable", {}).get(name))


def how_many_fit(group: PodGroup, node: Object) -> int:
    """How many of the pods fit on the node while it is empty."""
    amounts = {**group.requests, "pods": Decimal(1)}
    held = min(int(allocatable(node, name) // amount) for name, amount in amounts.items() if amount)
    return min(held, 1) if group.one_per_node else held


def amount_of(value: object) -> Decimal:
    return quantity(value) or Decimal(0)


def amount_text(name: str, amount: Decimal) -> str:
    """An amount as Kubernetes writes it: memory in Gi or Mi, other resources as a number."""
    is_bytes = name.rpartition(".")[2] in ("memory", "storage", "ephemeral-storage")
    if is_bytes and amount and amount == int(amount):
        tenths = amount * 10 / 2**30
        return memory_text(int(amount)) if amount % 2**20 == 0 else f"{float(tenths) / 10:.2f}Gi"
    return f"{amount.normalize():f}"


def _amounts_text(amounts: Amounts) -> str:
    return ", ".join(f"{name} {amount_text(name, amount)}" for name, amount in amounts.items())
