"""What the workers' pods need for a fast network: capabilities, the network of their node.

With the network of the node, Ray's ports are ports of the machine. The head keeps an address of its own.
"""

from __future__ import annotations

from typing import Any

from clustertrain.launchers.kubernetes.render.paths import PodJob

HEALTH_PORT = 52365  # of Ray's agent
# On a node: the kubelet and kube-proxy have ports from 10248 to 10257, and Services those from 30000.
_HOST_METRICS_PORT, _HOST_HEALTH_PORT = 20000, 20001
_HOST_WORKER_PORTS = (20002, 29999)


def health_port(run: PodJob) -> int:
    """Return the port of Ray's agent in a worker's pod."""
    return _HOST_HEALTH_PORT if run.section.host_network else HEALTH_PORT


def ports_of_ray(run: PodJob) -> dict[str, str]:
    """Return the arguments of `ray start` that set ports in a worker's pod.

    Ray and the kernel choose the ports that are not named.
    """
    if not run.section.host_network:
        return {}
    least, most = _HOST_WORKER_PORTS
    return {
        "metrics-export-port": str(_HOST_METRICS_PORT),
        "dashboard-agent-listen-port": str(_HOST_HEALTH_PORT),
        "min-worker-port": str(least),
        "max-worker-port": str(most),
    }


def add_network(run: PodJob, spec: dict[str, Any]) -> None:
    """Add to the spec of a worker's pod what the job asks for."""
    section, worker = run.section, spec["containers"][0]
    if section.worker_capabilities:
        worker["securityContext"]["capabilities"]["add"] = list(section.worker_capabilities)
    if section.host_network:
        # As ports of the container they are ports of the node, so no two such pods are placed on one node.
        ports = {"metrics": _HOST_METRICS_PORT, "agent": _HOST_HEALTH_PORT}
        worker["ports"] = [{"name": n, "containerPort": port} for n, port in ports.items()]
        # With the DNS of the node the pod would not find the head's Service.
        spec.update({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"})
