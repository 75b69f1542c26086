"""Runs Ray's processes on one node until one of them ends. The agent starts this program under a guardian.

`ray start` is not used, because it cannot turn off the server of Ray Client: a separate process, with a port
through which code can be executed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from clustertrain.node.network import wait_until_listening
from clustertrain.waiting import wait_until

_POLL_S = 0.5
_HEAD_WAIT_S = 60.0
_HEAD_POLL_S = 0.05


def main(parameters_json: str) -> int:
    """Start Ray's processes, and return 1 when one of them has ended.

    Args:
        parameters_json: fields of Ray's RayParams as JSON; without `gcs_address` this node is the head.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class NodeWithoutDashboard(Node):  # type: ignore[misc]  # ray ships no types
        def start_api_server(self, **options: Any) -> None:
            """Do nothing: without the dashboard its server has no use, and the raylet would wait for it."""

    parameters = json.loads(parameters_json)
    head = parameters.get("gcs_address")
    if head is not None:
        _wait_for_head(head)
    node = NodeWithoutDashboard(RayParams(**parameters), head=head is None)
    print(f"Ray is up: {node.address}, {node.get_session_dir_path()}", flush=True)
    while not (dead := node.dead_processes()):
        time.sleep(_POLL_S)
    for kind, process in dead:
        print(f"{kind} ended with code {process.returncode}", flush=True)
    return 1


def _wait_for_head(head: str) -> None:
    """Wait until the head has registered its own node. Ray also waits for this, but polls only every 2 s. If
    this wait times out, Ray's wait follows and reports the cause."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # it is compiled
    from ray.exceptions import RpcError

    client = None

    def has_node() -> bool:
        nonlocal client
        try:
            client = client or GcsClient(address=head)
            return bool(client.get_all_node_info(timeout=5))
        except RpcError as error:
            print(f"The head does not answer yet: {error}", flush=True)
            return False

    address, _, port = head.partition(":")
    if wait_until_listening(address, int(port), _HEAD_WAIT_S):
        wait_until(has_node, _HEAD_WAIT_S, _HEAD_POLL_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
