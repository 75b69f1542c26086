"""Ray's processes of one node, until one of them dies; what a guardian runs for a node agent.

`ray start` would do, but for what cannot be turned off there: the server of Ray Client, a port through which
code is run, and a process of its own.
"""

from __future__ import annotations

import json
import sys
import time

_LOOK_EVERY_S = 0.5


def main(parameters_json: str) -> int:
    """Start them, and return 1 when one has ended.

    Args:
        parameters_json: the fields of Ray's RayParams; without `gcs_address` this node is the head.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    parameters = json.loads(parameters_json)
    node = Node(RayParams(**parameters), head="gcs_address" not in parameters)
    print(f"Ray is up: {node.address}, {node.get_session_dir_path()}", flush=True)
    while not (dead := node.dead_processes()):
        time.sleep(_LOOK_EVERY_S)
    for kind, process in dead:
        print(f"{kind} ended with code {process.returncode}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
