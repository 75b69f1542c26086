"""Starts Ray's processes on this machine, within a deadline of the site instead of Ray's fixed limits.

How long Ray waits for its GCS is a setting of Ray's. That it gives a node 30 s to register, and that its
raylet waits 15 s for the ports of its agents, is fixed in its code, and a busy machine exceeds both. Here a
node that is only slow is waited for, a start that failed is repeated, and the error contains the last words
of the process that failed: the logs of Ray are removed with its folder.
"""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

from clustertrain.driver.fork.starter import SETUP_WORKER
from clustertrain.driver.ray_cluster import Deadline
from clustertrain.driver.ray_internals import (
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
    Node,
    RayParams,
    get_node,
    get_port_filename,
    persist_port,
)
from clustertrain.errors import ClusterError
from clustertrain.node import variables
from clustertrain.node.ports import free_block
from clustertrain.node.ray_settings import FAST_RESTART
from clustertrain.supervise.orphans import end_processes_of

_T = TypeVar("_T")

_WAIT_FOR_GCS = "RAY_gcs_server_port_wait_time_s"
_POLL_S = 0.1
_PAUSE_S = 1.0
_AGENT_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
_AGENTS = (METRICS_AGENT_PORT_NAME, RUNTIME_ENV_AGENT_PORT_NAME)
_LOGS = ("dashboard_agent", "runtime_env_agent", "gcs_server", "raylet")
_MOST_BYTES = 2**16  # of each log
_MOST_LINES = 4
_MOST_CHARACTERS = 400
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)\b.*", re.MULTILINE)
_LOGGED = re.compile(r"^\[[^\]]* [CE] [^\]]*\] \([^)]*\) \S+: *(.*)", re.MULTILINE)
_BOILERPLATE = re.compile(r"An unexpected system state has occurred\. .*? fix it\. ")
_LATE = re.compile(r"timed? ?out|deadline exceeded", re.IGNORECASE)
_CHANGES = re.compile(r"[0-9a-f]{8,}|\d+")  # ids, pids, ports and times, which differ in each start


class _NotUp(Exception):
    """A start of Ray failed. The text is the reason and, in the lines below, the words of Ray's processes."""


class _WaitingNode(Node):  # type: ignore[misc]  # ray ships no types
    """Ray's processes on this machine, waited for until a time of our own.

    `ends`: when to give up, as a time of time.monotonic().
    """

    def __init__(self, ray_params: RayParams, ends: float, *, head: bool, **options: Any) -> None:
        self._ends = ends
        _choose_ports(ray_params)
        os.environ.update(FAST_RESTART)
        if variables.FORK_SERVER in os.environ:
            ray_params.setup_worker_path = SETUP_WORKER
        try:
            super().__init__(ray_params, head=head, **options)
        except Exception as error:
            reason = _reason(self, error)
            _end(self)
            raise _NotUp(reason) from error

    def start_api_server(self, *, include_dashboard: bool | None, **options: Any) -> None:
        """Start the server as Ray does, but not without a dashboard: Ray would start it for other uses."""
        if include_dashboard is not False:
            super().start_api_server(include_dashboard=include_dashboard, **options)

    def start_ray_processes(self) -> None:
        """Start the processes as Ray does, and then wait until the node has registered.

        Ray's own wait of 30 s then ends at once. Wait for the agents as well: the raylet ends with them.
        """
        # The raylet is given the other ports, and waits 15 s for the file with this one, which no run uses.
        port = self._ray_params.dashboard_agent_listen_port
        persist_port(self.get_session_dir_path(), self.node_id, DASHBOARD_AGENT_LISTEN_PORT_NAME, port)
        super().start_ray_processes()
        for what, is_there in (
            ("the agents of the raylet have not started", self._have_agents_started),
            ("the node has not registered", self._has_registered),
        ):
            while not is_there():
                if self.dead_processes():
                    raise _NotUp("a process ended")
                if time.monotonic() >= self._ends:
                    raise _NotUp(what)
                time.sleep(_POLL_S)

    def _have_agents_started(self) -> bool:
        """Return whether each agent has written the file with its port.

        An agent writes it even if the port was given to it.
        """
        session = Path(self.get_session_dir_path())
        return all((session / get_port_filename(self.node_id, name)).exists() for name in _AGENTS)

    def _has_registered(self) -> bool:
        try:
            get_node(self.gcs_address, self.node_id)
        except RuntimeError:
            return False
        return True


def start_ray(
    parameters: RayParams, deadline: Deadline, report: Callable[[str], None], **options: Any
) -> Node:
    """Start Ray's processes, as many times as it takes within the deadline. Returns Ray's object for them.

    Args:
        parameters: of the node, such as RayParams(**node_parameters(…)).
        report: gets a line for each failed start that is repeated.
        options: of Ray's Node. `head`: whether this is the first node of its cluster.

    Raises:
        ClusterError: Ray did not start; the message has the last words of its processes.
    """
    os.environ[_WAIT_FOR_GCS] = str(math.ceil(deadline.seconds))
    return repeated(lambda ends: _WaitingNode(copy(parameters), ends, **options), deadline, report)


def repeated(start: Callable[[float], _T], deadline: Deadline, report: Callable[[str], None]) -> _T:
    """Call `start` until it succeeds, with the time of time.monotonic() at which it has to give up.

    A start that failed because something took too long is repeated until the deadline. Any other failure is
    repeated once: the same failure in two starts in a row is no coincidence.

    Raises:
        ClusterError: as `start_ray`.
    """
    ends = time.monotonic() + deadline.seconds
    starts, before = 0, ""
    while True:
        starts += 1
        try:
            return start(ends)
        except _NotUp as error:
            reason, same = str(error), _CHANGES.sub("", str(error))
            is_late = time.monotonic() + _PAUSE_S >= ends
            if is_late or (same == before and _LATE.search(reason) is None):
                raise _gave_up(reason, starts, deadline, is_late=is_late) from error
        report(f"Ray did not start: {reason}\nstarting Ray again (start {starts + 1})")
        before = same
        time.sleep(_PAUSE_S)


def _gave_up(reason: str, starts: int, deadline: Deadline, *, is_late: bool) -> ClusterError:
    what = f"Ray did not start on {socket.gethostname()}"
    if is_late:
        times = "1 start" if starts == 1 else f"{starts} starts"
        remedy = f"The machine is busy, or its disk is slow: start again later, or raise {deadline.key}."
        return ClusterError(f"{what} within {deadline}, in {times}: {reason}\n{remedy}")
    remedy = "The same error ended two starts: check the installation of Ray and the limits of this machine."
    return ClusterError(f"{what}: {reason}\n{remedy}")


def _choose_ports(params: RayParams) -> None:
    """Give Ray the ports that its agents would otherwise choose themselves.

    The raylet would wait for the files in which they write their choice, and for no longer than 15 s.
    """
    if names := [name for name in _AGENT_PORTS if not getattr(params, name)]:
        of_workers = range(params.min_worker_port or 0, (params.max_worker_port or -1) + 1)
        block = free_block(len(names), seed=os.getpid() + time.monotonic_ns(), taken=of_workers)
        for number, name in enumerate(names):
            setattr(params, name, block.first + number)


def _reason(node: Node, error: Exception) -> str:
    """Return why a start failed, and in the lines below the last words of Ray's processes."""
    dead = [f"{kind} ended with code {process.returncode}" for kind, process in node.dead_processes()]
    first = ", ".join(dead) or next(iter(str(error).splitlines()), type(error).__name__)
    return "\n".join([first, *last_words(getattr(node, "_logs_dir", None))])


def last_words(logs: str | None) -> list[str]:
    """Return the lines in the logs of a session of Ray that show why a process of it ended, each marked.

    An exception of a Python process comes first: the raylet ends with its agents, and names only the agent.
    """
    if logs is None:
        return []
    texts = [_end_of(path) for name in _LOGS for path in sorted(Path(logs).glob(f"{name}*.*"))]
    for pattern in (_EXCEPTION, _LOGGED):
        if found := [line for text in texts for line in pattern.findall(text)]:
            lines = dict.fromkeys(_BOILERPLATE.sub("", line)[:_MOST_CHARACTERS] for line in found)
            return [f"  | {line}" for line in [*lines][-_MOST_LINES:]]
    return []


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _MOST_BYTES))
        return file.read().decode(errors="replace")


def _end(node: Node) -> None:
    """Kill the processes of a failed start, also the agents of a raylet that has ended.

    These agents have another parent by now. Each process writes its log in the folder of the session.
    """
    node.kill_all_processes(check_alive=False)
    if (session := getattr(node, "_session_dir", None)) is not None:
        end_processes_of(Path(session).resolve())
