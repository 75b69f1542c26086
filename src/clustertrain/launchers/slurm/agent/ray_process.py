"""Ray's processes of one node, until one of them dies; what a guardian runs for a node agent.

`ray start` would do, but for what cannot be turned off there: the server of Ray Client, a port through which
code is run, and a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from clustertrain.node.network import wait_for_answer

_LOOK_EVERY_S = 0.5
_HEAD_PATIENCE_S = 60.0
_HEAD_POLL_S = 0.05


def main(parameters_json: str) -> int:
    """Start them, and return 1 when one has ended.

    Args:
        parameters_json: the fields of Ray's RayParams; without `gcs_address` this node is the head.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class NodeWithoutDashboard(Node):  # type: ignore[misc]  # ray ships no types
        def start_api_server(self, **options: Any) -> None:
            """Nothing: with the dashboard off it serves nothing, and the raylet would wait for it."""

    parameters = json.loads(parameters_json)
    head = parameters.get("gcs_address")
    if head is not None:
        _wait_for_head(head)
    node = NodeWithoutDashboard(RayParams(**parameters), head=head is None)
    print(f"Ray is up: {node.address}, {node.get_session_dir_path()}", flush=True)
    while not (dead := node.dead_processes()):
        time.sleep(_LOOK_EVERY_S)
    for kind, process in dead:
        print(f"{kind} ended with code {process.returncode}", flush=True)
    return 1


def _wait_for_head(head: str) -> None:
    """Until the head has a node, the first one. Ray looks, too, every 2 s; where this look comes to nothing,
    that one says why."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # it is compiled
    from ray.exceptions import RpcError

    ends = time.monotonic() + _HEAD_PATIENCE_S
    address, _, port = head.partition(":")
    if not wait_for_answer(address, int(port), _HEAD_PATIENCE_S):
        return
    client = None
    while time.monotonic() < ends:
        try:
            client = client or GcsClient(address=head)
            if client.get_all_node_info(timeout=5):
                return
        except RpcError as error:
            print(f"The head does not answer yet: {error}", flush=True)
        time.sleep(_HEAD_POLL_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
