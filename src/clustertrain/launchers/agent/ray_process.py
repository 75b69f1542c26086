"""Runs Ray's processes on one node until one of them ends. The agent starts this program under a guardian.

`ray start` is not used, because it cannot turn off the server of Ray Client: a separate process, with a port
through which code can be executed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from clustertrain.driver.ray_cluster import Deadline
from clustertrain.errors import EXIT_CLUSTER, ClusterError
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.streams.event_log import EventLog

_HEAD_POLL_S = 0.05


def main(cpus_per_worker: str, wait_s: str, wait_key: str, events: str, parameters_json: str) -> int:
    """Start Ray's processes, and return 1 when one has ended or does not answer, or 3 if they did not start.

    Args:
        cpus_per_worker: of the job.
        wait_s: how long the start may take; on a node that is not the head, after the head's.
        wait_key: the key of the job file that sets it.
        events: the file for the events of this node.
        parameters_json: fields of Ray's RayParams as JSON; without `gcs_address` this node is the head.
    """
    from clustertrain.driver.fork.starter import start_fork_server

    parameters = json.loads(parameters_json)
    start_fork_server(Path(parameters["temp_dir"]).parent, float(cpus_per_worker))  # before the slow imports
    from clustertrain.driver.connection import RayHead
    from clustertrain.driver.ray_internals import RayParams
    from clustertrain.driver.ray_node import last_words, start_ray
    from clustertrain.driver.ray_watch import end_of

    def report(text: str) -> None:
        print(text, flush=True)
        EventLog(Path(events)).write("warning", text=text)

    deadline = Deadline(float(wait_s), wait_key)
    head = parameters.get("gcs_address")
    if head is not None:
        # Ray also waits for the head, but polls only every 2 s, and not for long. If this wait times out, Ray
        # reports the cause.
        wait_until(RayHead(head).has_node, deadline.seconds, _HEAD_POLL_S)
    try:
        node = start_ray(RayParams(**parameters), deadline, report, head=head is None, shutdown_at_exit=False)
    except ClusterError as error:
        print(error, flush=True)
        return EXIT_CLUSTER
    print(f"Ray is up: {node.address}, {node.get_session_dir_path()}", flush=True)
    what = end_of(node)
    for line in last_words(node.get_logs_dir_path()):
        print(line)
    print(what, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
