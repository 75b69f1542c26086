"""NetworkPolicies: they allow the traffic that a run needs, and no other.

from                                        to          port
operator, the submitter's pod               head        8265: Ray's dashboard, which accepts jobs
pods of the same run                        each other  all: Ray, gloo, NCCL; with host_network, the workers
                                                        are kubernetes.node_networks
Prometheus                                  each pod    8080: metrics
pods of the run                             the cluster's DNS, and the node's: 53, on OpenShift 5353
pods of the run, if storage or data is      anywhere    the port of S3, of each HTTP origin and of each
on S3 or HTTP, or a logger has a server                 server of a logger

A kubelet's probes come from the pod's own node, and network plugins allow them. They also allow an operator
outside of the cluster, since it connects through the API server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from clustertrain.errors import JobError
from clustertrain.job.loggers import server_urls
from clustertrain.launchers.kubernetes.keys.pod_sections import Egress
from clustertrain.launchers.kubernetes.render.paths import PodJob
from clustertrain.launchers.kubernetes.render.pods import ROLE_LABEL, RUN_LABEL, run_labels

DASHBOARD_PORT, METRICS_PORT = 8265, 8080
# Names are resolved by pods of these namespaces, or by an address of the node: a cache, or that of a cloud.
_DNS_NAMESPACES, _DNS_ADDRESSES, _DNS_PORTS = ("kube-system", "openshift-dns"), "169.254.0.0/16", (53, 5353)
_OPERATOR = {"app.kubernetes.io/component": "kuberay-operator"}  # set by both Helm and kustomize
_PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"  # the API server sets it
_PORT_OF_SCHEME = {"http": 80, "https": 443}


def network_policies(run: PodJob) -> list[dict[str, Any]]:
    """One policy for each role of a pod, and one for the DNS of all. Workers with the network of their node
    have none, since policies select only pods with an address of their own.

    Raises:
        JobError: the head's policy would refuse the workers, because the nodes' addresses are not known.
    """
    ray, section = _ray_peers(run), run.section
    prometheus = _in_namespaces(section.monitoring_namespaces, _PROMETHEUS)
    metrics = {"from": [prometheus], "ports": _ports(METRICS_PORT)}
    dashboard = {
        "from": [_in_namespaces(section.operator_namespaces, _OPERATOR), *_peers(run, "submitter")],
        "ports": _ports(DASHBOARD_PORT),
    }
    out = [{"to": ray}, *_outside(run)]
    workers = [] if section.host_network else [_policy(run, "worker", [{"from": ray}, metrics], out)]
    return [
        _policy(run, "head", [{"from": ray}, dashboard, metrics], out),
        *workers,
        _policy(run, "submitter", [], [{"to": _peers(run, "head"), "ports": _ports(DASHBOARD_PORT)}]),
        _policy(run, "reader", [], _outside(run)),
        _object(run, "dns", {}, policyTypes=["Egress"], egress=[_dns()]),
    ]


def _ray_peers(run: PodJob) -> list[dict[str, Any]]:
    """Head and workers. Workers with the network of their node have its address."""
    section = run.section
    if not section.host_network:
        return _peers(run, "head", "worker")
    if not section.node_networks:
        raise JobError(
            "kubernetes.host_network: true gives the workers the addresses of their nodes, and the head's "
            "NetworkPolicy admits only pods of the run.\n"
            "Set kubernetes.node_networks to the ranges of the nodes' addresses (INTERNAL-IP of `kubectl get "
            "nodes -o wide`), or network_policies: false.",
            at=("kubernetes", "host_network"),
        )
    return [*_peers(run, "head"), *({"ipBlock": {"cidr": each}} for each in section.node_networks)]


def _policy(
    run: PodJob, role: str, ingress: list[dict[str, Any]], egress: list[dict[str, Any]]
) -> dict[str, Any]:
    types = ["Ingress", "Egress"]
    return _object(run, role, {ROLE_LABEL: role}, policyTypes=types, ingress=ingress, egress=egress)


def _object(run: PodJob, name: str, labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    """The policy NAME of the run's pods with these labels."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{run.job.name}-{name}", "labels": run_labels(run)},
        "spec": {"podSelector": {"matchLabels": {RUN_LABEL: run.job.name, **labels}}, **spec},
    }


def _peers(run: PodJob, *roles: str) -> list[dict[str, Any]]:
    return [{"podSelector": {"matchLabels": {RUN_LABEL: run.job.name, ROLE_LABEL: role}}} for role in roles]


def _in_namespaces(names: Sequence[str], pod_labels: Mapping[str, str]) -> dict[str, Any]:
    """Pods with these labels in these namespaces; without names, in every namespace."""
    among = {"matchExpressions": [{"key": _NAMESPACE_LABEL, "operator": "In", "values": list(names)}]}
    return {"namespaceSelector": among if names else {}, "podSelector": {"matchLabels": dict(pod_labels)}}


def _egress(rule: Egress) -> dict[str, Any]:
    """An outgoing flow that the job names; without a destination, to any address."""
    peer: dict[str, Any] = {}
    if rule.cidr is not None:
        peer["ipBlock"] = {"cidr": rule.cidr}
    if rule.namespace is not None or rule.pod_labels:
        peer |= _in_namespaces([rule.namespace] if rule.namespace else [], rule.pod_labels)
    return {**({"to": [peer]} if peer else {}), "ports": _ports(*rule.ports)}


def _outside(run: PodJob) -> list[dict[str, Any]]:
    """Egress to the ports of S3 and HTTP at any address, since these have no fixed addresses, and to what the
    job names."""
    ports = remote_ports(run)
    remote = [{"ports": _ports(*ports)}] if ports else []
    return [*remote, *(_egress(rule) for rule in run.section.egress)]


def _dns() -> dict[str, Any]:
    to = [_in_namespaces(_DNS_NAMESPACES, {}), {"ipBlock": {"cidr": _DNS_ADDRESSES}}]
    return {"to": to, "ports": _ports(*_DNS_PORTS)}


def _ports(*ports: int) -> list[dict[str, Any]]:
    """TCP ports; those of DNS with UDP as well."""
    tcp, dns = (("TCP", port) for port in ports), (("UDP", port) for port in ports if port in _DNS_PORTS)
    return [{"protocol": protocol, "port": port} for protocol, port in (*tcp, *dns)]


def remote_ports(run: PodJob) -> list[int]:
    """The ports of the servers of storage, data and loggers, or empty if all of it is on volumes."""
    ports = {_port(url) for url in server_urls(run.job)}
    for location in (run.job.storage.location, *map(run.job.data_location, run.job.data)):
        if location.is_s3:
            ports.add(_port(location.endpoint or "https://s3.amazonaws.com"))
        elif location.is_http:
            ports.add(_port(location.uri))
    return sorted(ports)


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _PORT_OF_SCHEME[parts.scheme]
