"""The nodes of the Ray cluster that this process is connected to."""

from __future__ import annotations

import ray

from clustertrain.driver.world_size import RayNode


def alive_nodes() -> list[RayNode]:
    """The nodes that Ray calls alive. Ray notices after up to 30 s that a node was lost, and the free
    resources are a second old."""
    from clustertrain.driver.ray_internals import available_resources_per_node

    free = available_resources_per_node()
    return [
        RayNode(
            node["NodeManagerAddress"],
            int(node["NodeManagerPort"]),
            node["Resources"],
            free.get(node["NodeID"], {}),
            node["NodeID"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def alive_addresses() -> set[str]:
    """The addresses of the nodes that Ray calls alive."""
    return {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
