"""The NetworkPolicy of a run: its pods are closed to everything but these flows.

from                                        to          port
head and workers                            each other  all: Ray, gloo, NCCL; with host_network, the workers
                                                        are kubernetes.node_networks
operator, the submitter's pod               the pods    8265: Ray's dashboard in the head, which accepts jobs
Prometheus                                  the pods    8080: metrics
the pods                                    the cluster's DNS, and the node's: 53, on OpenShift 5353
the pods, if storage or data is on S3 or    anywhere    the port of S3, of each HTTP origin and of each
HTTP, or a logger has a server                          server of a logger
the pods                                    what kubernetes.egress names

A kubelet's probes come from the pod's own node, and network plugins allow them. They also allow an operator
outside of the cluster, since it connects through the API server.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from clustertrain.errors import JobError
from clustertrain.job.loggers import server_urls
from clustertrain.launchers.kubernetes.render.paths import PodJob
from clustertrain.launchers.kubernetes.render.pods import ROLE_LABEL, RUN_LABEL, run_labels

_DASHBOARD_PORT, _METRICS_PORT = 8265, 8080
# Names are resolved by pods of these namespaces, or by an address of the node: a cache, or that of a cloud.
_DNS_NAMESPACES, _DNS_ADDRESSES, _DNS_PORTS = ["kube-system", "openshift-dns"], "169.254.0.0/16", (53, 5353)
_OPERATOR = {"app.kubernetes.io/component": "kuberay-operator"}  # set by both Helm and kustomize
_PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"  # the API server sets it
_PORT_OF_SCHEME = {"http": 80, "https": 443}


def network_policy(run: PodJob) -> dict[str, Any]:
    """Return the policy of all pods of the run.

    It does not apply to workers on the network of their node, since policies are for pods with an address of
    their own.

    Raises:
        JobError: the head would refuse the workers, because the nodes' addresses are not known.
    """
    ray, remote = _ray(run), remote_ports(run)
    of_dns = {"key": _NAMESPACE_LABEL, "operator": "In", "values": _DNS_NAMESPACES}
    dns = [{"namespaceSelector": {"matchExpressions": [of_dns]}}, {"ipBlock": {"cidr": _DNS_ADDRESSES}}]
    asked = [
        {**({"to": [{"ipBlock": {"cidr": rule.cidr}}]} if rule.cidr else {}), "ports": _ports(*rule.ports)}
        for rule in run.section.egress
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": run.job.name, "labels": run_labels(run)},
        "spec": {
            "podSelector": {"matchLabels": {RUN_LABEL: run.job.name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": ray},
                {"from": [_anywhere(_OPERATOR), _role(run, "submitter")], "ports": _ports(_DASHBOARD_PORT)},
                {"from": [_anywhere(_PROMETHEUS)], "ports": _ports(_METRICS_PORT)},
            ],
            "egress": [
                {"to": ray},
                {"to": dns, "ports": _ports(*_DNS_PORTS)},
                *([{"ports": _ports(*remote)}] if remote else []),
                *asked,
            ],
        },
    }


def _ray(run: PodJob) -> list[dict[str, Any]]:
    """Return the peers of head and workers; workers with the network of their node have its address."""
    section = run.section
    if not section.host_network:
        return [_role(run, "head"), _role(run, "worker")]
    if not section.node_networks:
        raise JobError(
            "kubernetes.host_network: true gives the workers the addresses of their nodes, and the head's "
            "NetworkPolicy admits only pods of the run.\n"
            "Set kubernetes.node_networks to the ranges of the nodes' addresses (INTERNAL-IP of `kubectl get "
            "nodes -o wide`), or network_policies: false.",
            at=("kubernetes", "host_network"),
        )
    return [_role(run, "head"), *({"ipBlock": {"cidr": each}} for each in section.node_networks)]


def _role(run: PodJob, role: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {RUN_LABEL: run.job.name, ROLE_LABEL: role}}}


def _anywhere(labels: dict[str, str]) -> dict[str, Any]:
    """Return the peer of a rule for pods with these labels in every namespace."""
    return {"namespaceSelector": {}, "podSelector": {"matchLabels": labels}}


def _ports(*ports: int) -> list[dict[str, Any]]:
    """Return the entries of TCP ports; the ports of DNS have an entry for UDP as well."""
    tcp, dns = (("TCP", port) for port in ports), (("UDP", port) for port in ports if port in _DNS_PORTS)
    return [{"protocol": protocol, "port": port} for protocol, port in (*tcp, *dns)]


def remote_ports(run: PodJob) -> list[int]:
    """Return the ports of the servers of storage, data and loggers; empty if all of it is on volumes."""
    ports = {_port(url) for url in server_urls(run.job.loggers, run.job.env)}
    for location in (run.job.storage.location, *map(run.job.data_location, run.job.data)):
        if location.is_s3:
            ports.add(_port(location.endpoint or "https://s3.amazonaws.com"))
        elif location.is_http:
            ports.add(_port(location.uri))
    return sorted(ports)


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _PORT_OF_SCHEME[parts.scheme]
