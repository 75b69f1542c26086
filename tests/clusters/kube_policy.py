"""NetworkPolicies, enforced by iptables: the fixture's own work, for no agent that could do it is at hand.

`rules` follows the API's definition for pods on one node, as far as the kit's policies use it: what the node
itself sends (probes of the kubelet, the API server's proxy) always passes, an open connection stays open, and
what is not allowed is dropped. Pods that are new are unknown for a moment: closed to their peers, and open
themselves.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from urllib3.exceptions import HTTPError

from clusters.kube_api import Refused
from clusters.kube_client import Kubernetes

Object = Mapping
_LABEL = "clustertrain-tests/enforced"  # of a namespace whose policies count
_ANYWHERE = "0.0.0.0/0"
_INTERVAL_S = 0.3


@contextlib.contextmanager
def enforced(cluster: Kubernetes, namespace: str, run: Callable[..., object]) -> Iterator[None]:
    """`run` runs a command on the node. Other processes do the same for namespaces of theirs."""

    def follow(before: str = "") -> str:
        found = {resource: cluster.items(resource) for resource in ("namespaces", "networkpolicies", "pods")}
        wanted = rules(found["namespaces"], found["networkpolicies"], found["pods"])
        if wanted != before:
            run("iptables-restore", input=wanted)
        return wanted

    def keep_following() -> None:
        now = ""
        while not ended.wait(_INTERVAL_S):
            with contextlib.suppress(Refused, HTTPError):  # a test may have stopped the API server
                now = follow(now)

    ended = threading.Event()
    follower = threading.Thread(target=keep_following)
    cluster.patch("namespaces", namespace, {"metadata": {"labels": {_LABEL: "yes"}}})
    follow()
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()
        cluster.patch("namespaces", namespace, {"metadata": {"labels": {_LABEL: None}}})
        follow()


@dataclass(frozen=True)
class _Pod:
    """One that has an address of its own and has not ended."""

    address: str
    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]


def rules(namespaces: Sequence[Object], policies: Sequence[Object], of_api: Sequence[Object]) -> str:
    """Of the whole table `security`, which nobody else uses, for iptables-restore. `of_api`: all pods."""
    pods = list(_pods(namespaces, of_api))
    jumps: list[str] = []
    chains: dict[str, list[str]] = {}
    for pod in pods:
        if _LABEL not in pod.namespace_labels:
            continue
        for direction, hooks, own in (("Ingress", ["FORWARD"], "-d"), ("Egress", ["FORWARD", "INPUT"], "-s")):
            chosen = [policy for policy in policies if _applies(policy, pod, direction)]
            if not chosen:
                continue
            chain = f"{direction}-{len(chains)}"
            jumps += [f"-A {hook} {own} {pod.address} -j {chain}" for hook in hooks]
            chains[chain] = [
                f"-A {chain} {match} -j RETURN"
                for policy in chosen
                for rule in policy["spec"].get(direction.lower(), [])
                for match in _matches(rule, direction, pod, pods)
            ]
    known = "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
    return "\n".join(
        [
            "*security",
            *(f":{hook} ACCEPT [0:0]" for hook in ("INPUT", "FORWARD", "OUTPUT")),
            *(f":{chain} - [0:0]" for chain in chains),
            *(f"-A {hook} {known}" for hook in ("INPUT", "FORWARD")),
            *jumps,
            *(line for chain, lines in chains.items() for line in [*lines, f"-A {chain} -j DROP"]),
            "COMMIT\n",
        ]
    )


def _pods(namespaces: Sequence[Object], pods: Sequence[Object]) -> Iterator[_Pod]:
    around = {each["metadata"]["name"]: _labels(each) for each in namespaces}
    for each in pods:
        if each["spec"].get("hostNetwork"):
            continue
        address, namespace = each["status"].get("podIP"), each["metadata"]["namespace"]
        if address and each["status"].get("phase") not in ("Succeeded", "Failed"):
            # A namespace may be younger than the list of them.
            yield _Pod(address, namespace, _labels(each), around.get(namespace, {}))


def _labels(thing: Object) -> Mapping[str, str]:
    return thing["metadata"].get("labels", {})


def _applies(policy: Object, pod: _Pod, direction: str) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    same = policy["metadata"]["namespace"] == pod.namespace
    return same and direction in types and _selects(spec.get("podSelector", {}), pod.labels)


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions), expressions
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )


def _matches(rule: Object, direction: str, pod: _Pod, pods: Sequence[_Pod]) -> Iterator[str]:
    """What iptables compares, one line for each way to pass."""
    side, peers = ("-s", "from") if direction == "Ingress" else ("-d", "to")
    ports = [f"-p {port['protocol'].lower()} --dport {port['port']}" for port in rule.get("ports", [])]
    for address in _peers(rule.get(peers), pod.namespace, pods):
        for what in ports or [""]:
            yield f"{side} {address} {what}"


def _peers(peers: Sequence[Object] | None, namespace: str, pods: Sequence[_Pod]) -> Iterator[str]:
    """Their addresses."""
    if not peers:
        yield _ANYWHERE
    for peer in peers or ():
        if block := peer.get("ipBlock"):
            yield block["cidr"]
            continue
        around = peer.get("namespaceSelector")
        for pod in pods:
            inside = pod.namespace == namespace if around is None else _selects(around, pod.namespace_labels)
            if inside and _selects(peer.get("podSelector", {}), pod.labels):
                yield pod.address
