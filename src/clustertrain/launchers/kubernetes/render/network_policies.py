"""NetworkPolicies: they allow the traffic that a run needs, and no other.

from                                        to          port
operator, the submitter's pod               head        8265: Ray's dashboard, which accepts jobs
pods of the same run                        each other  all: Ray, gloo, NCCL
Prometheus                                  each pod    8080: metrics
pods of the run                             DNS         53
pods of the run, if storage or data is      anywhere    the port of S3, of each HTTP origin and of each
on S3 or HTTP, or a logger has a server                 server of a logger

A kubelet's probes come from the pod's own node, and network plugins allow them. They also allow an operator
outside of the cluster, since it connects through the API server.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from clustertrain.job.loggers import server_urls
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.render.pods import ROLE_LABEL, RUN_LABEL, run_labels

DASHBOARD_PORT, METRICS_PORT, DNS_PORT = 8265, 8080, 53
_OPERATOR = {"app.kubernetes.io/component": "kuberay-operator"}  # set by both Helm and kustomize
_PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
_PORT_OF_SCHEME = {"http": 80, "https": 443}


def network_policies(job: Job) -> list[dict[str, Any]]:
    """One policy for each role of a pod."""
    ray = _peers(job, "head", "worker")
    metrics = {"from": [_in_any_namespace(_PROMETHEUS)], "ports": _ports(METRICS_PORT)}
    dashboard = {
        "from": [_in_any_namespace(_OPERATOR), *_peers(job, "submitter")],
        "ports": _ports(DASHBOARD_PORT),
    }
    out = [{"to": ray}, *_outside(job)]
    return [
        _policy(job, "head", [{"from": ray}, dashboard, metrics], out),
        _policy(job, "worker", [{"from": ray}, metrics], out),
        _policy(job, "submitter", [], [{"to": _peers(job, "head"), "ports": _ports(DASHBOARD_PORT)}, _dns()]),
        _policy(job, "reader", [], _outside(job)),
    ]


def _policy(
    job: Job, role: str, ingress: list[dict[str, Any]], egress: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{job.name}-{role}", "labels": run_labels(job)},
        "spec": {
            "podSelector": {"matchLabels": {RUN_LABEL: job.name, ROLE_LABEL: role}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _peers(job: Job, *roles: str) -> list[dict[str, Any]]:
    return [{"podSelector": {"matchLabels": {RUN_LABEL: job.name, ROLE_LABEL: role}}} for role in roles]


def _in_any_namespace(pod_labels: dict[str, str]) -> dict[str, Any]:
    return {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(pod_labels)}}


def _outside(job: Job) -> list[dict[str, Any]]:
    """Egress to DNS, and to the ports of S3 and HTTP at any address, since these have no fixed addresses."""
    ports = remote_ports(job)
    return [_dns(), {"ports": _ports(*ports)}] if ports else [_dns()]


def _dns() -> dict[str, Any]:
    return {"ports": [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]}


def _ports(*ports: int) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def remote_ports(job: Job) -> list[int]:
    """The ports of the servers of storage, data and loggers; empty if all of it is on volumes."""
    ports = {_port(url) for url in server_urls(job)}
    for location in (job.storage.location, *map(job.data_location, job.data)):
        if location.is_s3:
            ports.add(_port(location.endpoint or "https://s3.amazonaws.com"))
        elif location.uri.startswith(("http://", "https://")):
            ports.add(_port(location.uri))
    return sorted(ports)


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _PORT_OF_SCHEME[parts.scheme]
