"""Notices that the Ray of this node has ended or does not answer, and ends the driver then.

Ray notices the death of its GCS or of its raylet after 30 to 60 s, or not at all. A GCS that gets SIGTERM
closes its port and stays: the workers would train to their end, and could not report it. The supervisor
starts the driver again, and with it a new Ray.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from typing import Any

from ray import NodeID
from ray.exceptions import RayError

from clustertrain.driver.ray_internals import GcsNodeInfo
from clustertrain.errors import EXIT_RAY_ENDED
from clustertrain.node.network import is_refused
from clustertrain.node.signals import ending_text
from clustertrain.supervise.driver_process import MARK

_ASK_EVERY_S = 1.0
_ANSWERS_WITHIN_S = 30.0  # it takes a millisecond, and a few seconds on a machine with 45 processes per core

_watched: list[Any] = []


def end_with(node: Any) -> None:
    """End this process with EXIT_RAY_ENDED as soon as the Ray of this node, a Node of Ray's, has ended."""
    _watched.append(node)
    threading.Thread(target=_wait_and_end, args=(node,), name="ray-watch", daemon=True).start()


def has_ended() -> bool:
    """Return whether a process of the Ray that ends this process has ended.

    An error may then come from that.
    """
    return any(node.dead_processes() for node in _watched)


def _wait_and_end(node: Any) -> None:
    print(f"{MARK}{end_of(node)}", file=sys.stderr, flush=True)
    os._exit(EXIT_RAY_ENDED)


def end_of(node: Any) -> str:
    """Wait until a process of Ray on this node has ended or does not answer; return which one and how.

    The text is a sentence. The GCS, if it is on this node, is asked who does not answer.
    """
    processes = {kind: info.process for kind, infos in node.all_processes.items() for info in infos}
    by_fd = {os.pidfd_open(process.pid): kind for kind, process in processes.items()}
    gcs = _Gcs(node) if node.head else None
    while not (ended := select.select([*by_fd], [], [], _ASK_EVERY_S)[0]):
        if gcs is not None and (fault := gcs.fault()):
            kind, what = fault
            return f"Ray's {kind} (pid {processes[kind].pid}) {what}"
    kind = by_fd[ended[0]]
    return f"Ray's {kind} (pid {processes[kind].pid}) {ending_text(processes[kind].wait())}"


class _Gcs:
    """The GCS of a node, which knows whether the raylet answers."""

    def __init__(self, node: Any) -> None:
        self._host, _, port = node.gcs_address.rpartition(":")
        self._port, self._node_id = int(port), NodeID.from_hex(node.node_id)
        self._client = node.get_gcs_client()  # connected: a new client would wait for a GCS that has ended
        self._answered = time.monotonic()

    def fault(self) -> tuple[str, str] | None:
        """Return the process that does not answer, by Ray's name for it, and what is known of it."""
        if is_refused(self._host, self._port):
            return "gcs_server", "has closed its port"
        try:
            nodes = self._client.get_all_node_info(timeout=_ANSWERS_WITHIN_S)
        except RayError:
            if time.monotonic() - self._answered < _ANSWERS_WITHIN_S:
                return None
            return "gcs_server", f"has not answered for {_ANSWERS_WITHIN_S:g} s"
        self._answered = time.monotonic()
        if nodes[self._node_id].state == GcsNodeInfo.DEAD:
            return "raylet", "has not answered the GCS for a minute"
        return None
