"""Whether the nodes and the quotas of a cluster can hold a run. Pure arithmetic.

If no node can hold a pod, or a quota never admits it, the run waits until its deadline. Nodes count as empty,
since the pods that run there now will end. A dry run does not show this, because it does not schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from clustertrain.launchers.kubernetes.render.pods import memory_text
from clustertrain.launchers.kubernetes.rules.names import quantity
from clustertrain.run.command_line import UNKNOWN, CommandLine

Object = Mapping[str, Any]
Amounts = Mapping[str, Decimal]
_TEMPORARY_TAINTS = "node.kubernetes.io/"  # temporary taints, such as not-ready and unschedulable


@dataclass(frozen=True)
class PodGroup:
    """Pods of one kind, and what each of them requests of a node. `limits` count only for quotas."""

    role: str
    pods: int
    requests: Amounts
    limits: Amounts
    selector: Mapping[str, str]
    tolerations: tuple[Object, ...] = ()

    @property
    def text(self) -> str:
        return {"head": "The head's pod", "submitter": "The submitter's pod"}.get(self.role, "A worker's pod")


def pod_groups_of(rayjob: Object) -> list[PodGroup]:
    """The pods that a RayJob needs to start: head, the minimum of each worker group, submitter."""
    spec = rayjob["spec"]
    cluster = spec["rayClusterSpec"]
    found = [_group("head", 1, cluster["headGroupSpec"]["template"]["spec"])]
    for group in cluster.get("workerGroupSpecs", ()):
        least = group.get("minReplicas", group.get("replicas", 1))
        found.append(_group(str(group["groupName"]), int(least), group["template"]["spec"]))
    if "submitterPodTemplate" in spec:
        found.append(_group("submitter", 1, spec["submitterPodTemplate"]["spec"]))
    return found


def group_of_pod(pod: Object) -> PodGroup:
    """The group of one existing pod, for what it uses of a quota."""
    return _group("pod", 1, pod["spec"])


def _group(role: str, pods: int, spec: Object) -> PodGroup:
    tolerations = tuple(spec.get("tolerations", ()))
    requests, limits = (_amounts(spec, kind) for kind in ("requests", "limits"))
    return PodGroup(role, pods, requests, limits, spec.get("nodeSelector", {}), tolerations)


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
    render = command.on_job("render --to kubernetes")
    remedy = (
        f"If an autoscaler would add such a node, apply without this check: `{render} | kubectl apply -f -`"
    )
    whys = (_why_no_node(group, nodes, remedy) for group in groups)
    return next((text for text in whys if text is not None), None)


def _why_no_node(group: PodGroup, nodes: Sequence[Object], remedy: str) -> str | None:
    labelled = [node for node in nodes if _has_labels(node, group.selector)]
    if not labelled:
        selector = ", ".join(f"{key}={value}" for key, value in group.selector.items())
        shown = "`kubectl get nodes --show-labels` shows their labels."
        return f"None of {len(nodes)} nodes has {selector} (kubernetes.node_selector).\n{shown}"
    eligible = [node for node in labelled if not _untolerated_taints(node, group)]
    if not eligible:
        taints = sorted({taint for node in labelled for taint in _untolerated_taints(node, group)})
        return (
            f"{group.text} may run on none of {len(labelled)} nodes: their taints are {', '.join(taints)}.\n"
            "Tolerate them under kubernetes.tolerations, or choose other nodes with kubernetes.node_selector."
        )
    for name, amount in group.requests.items():
        most = max(_allocatable(node, name) for node in eligible)
        if most < amount:
            has = "no node has any" if most == 0 else f"the largest node has {amount_text(name, most)}"
            return f"{group.text} requests {name} {amount_text(name, amount)}, and {has}.\n{remedy}"
    held = sum(_how_many_fit(group, node) for node in eligible)
    requested = _amounts_text(group.requests)
    if held == 0:
        return f"{group.text} requests {requested}, and no node has all of it.\n{remedy}"
    if held < group.pods:
        return (
            f"{group.pods} worker pods request {requested} each, and all nodes together can hold {held} of "
            f"them.\n{remedy}"
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


def _allocatable(node: Object, name: str) -> Decimal:
    return _amount(node["status"].get("allocatable", {}).get(name))


def _how_many_fit(group: PodGroup, node: Object) -> int:
    """How many of the pods fit on the node while it is empty."""
    amounts = {**group.requests, "pods": Decimal(1)}
    return min(int(_allocatable(node, name) // amount) for name, amount in amounts.items() if amount)


# ------------------------------------------------------------------------------------------------ the quotas


def why_no_quota(groups: Sequence[PodGroup], quotas: Sequence[Object], own: Sequence[PodGroup]) -> str | None:
    """Why a quota cannot admit the pods; None if every quota can.

    Args:
        own: existing pods of this run. They are deleted before it starts, so what they use counts as free.
    """
    for quota in quotas:
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue  # a quota with scopes counts only some pods
        used = quota.get("status", {}).get("used", {})
        for key, hard in quota["spec"].get("hard", {}).items():
            needed = [(group, _quota_use(group, key)) for group in groups]
            total = Decimal(sum(group.pods * amount for group, amount in needed))
            returned = Decimal(sum(_quota_use(group, key) for group in own))
            limit, taken = _amount(hard), _amount(used.get(key)) - returned
            if total and limit - taken < total:
                left_text, limit_text, used_text = (
                    amount_text(key, x) for x in (limit - taken, limit, taken)
                )
                return (
                    f"ResourceQuota {quota['metadata']['name']} has {left_text} of {key} left "
                    f"({limit_text} - {used_text} used), and the run needs "
                    f"{' + '.join(_parts(needed, key))} = {amount_text(key, total)}.\n"
                    "Request less under resources and kubernetes.head, or wait until other runs have ended."
                )
    return None


def _amount(value: object) -> Decimal:
    return quantity(value) or Decimal(0)


def _quota_use(group: PodGroup, key: str) -> Decimal:
    """What one of the pods uses under a key of a quota; 0 for keys that do not concern pods."""
    if key in ("pods", "count/pods"):
        return Decimal(1)
    if key.startswith("limits."):
        return group.limits.get(key.removeprefix("limits."), Decimal(0))
    return group.requests.get(key.removeprefix("requests."), Decimal(0))


def _parts(needed: Sequence[tuple[PodGroup, Decimal]], key: str) -> Iterator[str]:
    for group, amount in needed:
        times = f"{group.pods} × " if group.pods != 1 else ""
        if amount:
            yield f"{times}{amount_text(key, amount)} ({group.role})"


def amount_text(name: str, amount: Decimal) -> str:
    """An amount as Kubernetes writes it: memory in Gi or Mi, other resources as a number."""
    is_bytes = name.rpartition(".")[2] in ("memory", "storage", "ephemeral-storage")
    if is_bytes and amount and amount == int(amount):
        tenths = amount * 10 / 2**30
        return memory_text(int(amount)) if amount % 2**20 == 0 else f"{float(tenths) / 10:.2f}Gi"
    return f"{amount.normalize():f}"


def _amounts_text(amounts: Amounts) -> str:
    return ", ".join(f"{name} {amount_text(name, amount)}" for name, amount in amounts.items())
