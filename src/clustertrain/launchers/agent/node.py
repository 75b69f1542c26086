"""The common part of all agents: what they know of the start, address and ports, the start of Ray."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clustertrain.driver.ray_cluster import Deadline, node_parameters
from clustertrain.errors import EXIT_CLUSTER, ClusterError
from clustertrain.job.model import Job
from clustertrain.job.start_environment import hash_seed
from clustertrain.launchers.one_host import check_installed
from clustertrain.node import variables
from clustertrain.node.network import address_towards
from clustertrain.node.ports import Ports, free_block
from clustertrain.node.ray_settings import RAY_ENVIRONMENT
from clustertrain.node.signals import REQUESTS_TO_END, handled_signals
from clustertrain.node.user_folders import spool_base
from clustertrain.run_files.admission import Options
from clustertrain.run_files.claims import allocation_of
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import Arrival, SchedulerStart
from clustertrain.run_files.result import ended, failed
from clustertrain.supervise.guardian import become_subreaper, kill_descendants
from clustertrain.supervise.private_folder import (
    memory_folder,
    private_folder,
    remove,
    temporary_folder,
    write_token,
)
from clustertrain.supervise.process import Guarded

_SERVER_PORTS = (
    "node_manager_port",
    "object_manager_port",
    "runtime_env_agent_port",
    "dashboard_agent_listen_port",
    "metrics_agent_port",
    "metrics_export_port",
)
_HEAD_PORTS = 1  # the port of the GCS
_AUXILIARY_PROCESSES = 24  # controller, driver, and Ray's own processes
# A task of srun is not a rank. With these variables a library would take each worker for rank 0 of 1.
_TASK_VARIABLES = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_GTIDS",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
)
_NOT_PASSED_ON = (variables.TOKEN, variables.SUBMISSION, "RAY_AUTH_TOKEN", "RAY_ADDRESS")

LEAD_SIGNALS = {signal.SIGUSR1, signal.SIGUSR2}
"""A scheduler may send one of these some time before the end. Others mean an immediate end."""
TERM_SIGNALS = {*REQUESTS_TO_END} - LEAD_SIGNALS


@dataclass(frozen=True)
class AgentSettings:
    """What the agents of a scheduler's jobs need to know of it.

    Attributes:
        nodes_wait: how long the start of Ray on all nodes may take.
        next_start: what a result says of the start that follows a node on which Ray does not start; None if
            none follows.
        own_address: the address of this node by which the others know it; None if the routes decide.
    """

    nodes_wait: Deadline
    next_start: str | None
    own_address: str | None = None


@dataclass(frozen=True)
class NodeStart:
    """One start of a job, as each of its nodes reads it.

    Attributes:
        record: as the claim of its attempt has it.
        node_rank: the index of this node in `record.nodes`.
        folder: a private folder of this node with a short path.
        code: the folders of the unpacked code.
        token: a secret of the agents of this start, for their Ray.
    """

    job: Job
    run: RunDir
    options: Options
    record: SchedulerStart
    node_rank: int
    folder: Path
    code: Sequence[Path]
    settings: AgentSettings
    token: str

    @property
    def host(self) -> str:
        return self.record.nodes[self.node_rank]

    @property
    def python_key(self) -> str:
        """The key of the job file that names the Python of the nodes."""
        return f"{self.record.scheduler}.python"

    @property
    def poll_s(self) -> float:
        """The seconds between two reads of the storage.

        On S3 each read is a request that costs money.
        """
        return 2.0 if self.run.is_spooled else 0.3


@dataclass(frozen=True)
class PreparedNode:
    """The part of this node in the Ray cluster."""

    address: str
    ports: Ports
    token_path: Path
    environment: dict[str, str]


class NodeLost(ClusterError):
    """Ray ended on a node during a run. Another start of the run may succeed."""


def settings_of(job: Job) -> AgentSettings:
    """Return the settings for a scheduler that has none of its own."""
    nodes_wait = Deadline(job.failures.ray_start_s, "failures.ray_start")
    return AgentSettings(nodes_wait, "The next start of the run may have other hosts.")


@contextmanager
def agent_process() -> Iterator[tuple[Path, list[int]]]:
    """Yield a private folder, and the signals that arrive within the block.

    At its end no process and no file is left on this node.
    """
    become_subreaper()
    folder = None
    try:
        with handled_signals(REQUESTS_TO_END) as signals:
            folder = private_folder()
            yield folder, signals
    finally:
        kill_descendants()
        if folder is not None:
            remove(folder)


def prepare_node(start: NodeStart, route_target: str) -> PreparedNode:
    """Check this node and prepare it for Ray: address, ports, token, folder for temporary files.

    Args:
        route_target: a host; this node's address is that of the interface with the route to it.

    Raises:
        ClusterError: torch or Ray is not installed here, or there is no route to that host.
    """
    check_installed(start.host, start.python_key)
    address = address_towards(route_target)
    ports = free_block(ports_needed(start.job), seed=_seed(start.record.job_id))
    token_path = write_token(start.folder, start.token)
    environ = {
        **os.environ,
        "TMPDIR": str(temporary_folder(start.folder)),
        variables.MEMORY_DIR: str(memory_folder(start.folder)),
        variables.SPOOL: str(spool_base()),
        **hash_seed(start.job),
    }
    return PreparedNode(address, ports, token_path, node_environment(environ, token_path, ports, start.code))


def ports_needed(job: Job) -> int:
    """Return the number of ports that a node needs.

    It is one for each server and process of Ray, and four for a worker, which may restart.
    """
    return _HEAD_PORTS + len(_SERVER_PORTS) + _AUXILIARY_PROCESSES + 4 * job.resources.workers_per_node


def node_environment(
    environ: Mapping[str, str], token_path: Path, ports: Ports, code: Sequence[Path]
) -> dict[str, str]:
    """Return the environment of Ray on a node; the workers inherit it."""
    left_out = (*_TASK_VARIABLES, *_NOT_PASSED_ON)
    environment = {key: value for key, value in environ.items() if key not in left_out}
    environment |= RAY_ENVIRONMENT
    return environment | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_path),
        variables.PORTS: str(ports),
        variables.CODE: os.pathsep.join(map(str, code)),
    }


def _seed(job_id: str) -> int:
    """Return a number for each ID of a job, which may have letters."""
    return int("".join(each for each in job_id if each.isdecimal()) or "0")


def start_ray(start: NodeStart, node: PreparedNode, attempt: Attempt, head: str | None) -> Guarded:
    """Start Ray on this node; its output goes to the folder with the logs of the node's ranks."""
    folder = start.folder / "ray"
    folder.mkdir(mode=0o700)
    command = ray_command(start, node, folder, attempt.node_events(start.host), head)
    return Guarded(command, attempt.ray_log(start.host), folder, node.environment, shielded=True)


def ray_command(
    start: NodeStart, node: PreparedNode, folder: Path, events: Path, head: str | None
) -> list[str]:
    """Return the command that starts Ray (ray_process.py).

    It sets every port as well, because other jobs may share the node.

    Args:
        folder: a private folder, for Ray's files and sockets.
        events: the file for the events of this node.
        head: the address and port of the head, or None on the head itself.
    """
    resources, each, ports = start.job.resources, start.job.resources.workers_per_node, node.ports
    servers = range(ports.first + _HEAD_PORTS, ports.first + _HEAD_PORTS + len(_SERVER_PORTS))
    parameters: dict[str, object] = {
        **node_parameters(resources, each, node.address, folder),
        **({"gcs_server_port": ports.first} if head is None else {"gcs_address": head}),
        **dict(zip(_SERVER_PORTS, servers, strict=True)),
        "node_name": start.host,
        "min_worker_port": servers.stop,
        "max_worker_port": ports.last - each,  # the ports above are for the process groups of scripts
    }
    deadline = start.settings.nodes_wait
    program = [sys.executable, "-P", "-m", "clustertrain.launchers.agent.ray_process"]
    program += [str(resources.cpus_per_worker), str(deadline.seconds), deadline.key]
    return [*program, str(events), json.dumps(parameters)]


def record_arrival(start: NodeStart, attempt: Attempt) -> None:
    """Record in the storage that this node has found the head."""
    attempt.arrival(start.node_rank).write(Arrival(start.host))


def ray_ended(host: str, ray: Guarded) -> NodeLost:
    """End a node's Ray, and return the error for a node whose Ray has ended."""
    ray.end()
    return NodeLost(f"Ray on {host} {ray.how_it_ended()}. The end of {ray.log}:\n{ray.last_lines()}")


def result_of_late_node(attempt: Attempt, job: Job, text: str, next_start: str | None) -> Result:
    """Return the result of an attempt that a node ended before the workers started; `text` names the node.

    A job of several nodes is started again, as after the loss of a node: SLURM may allocate other nodes, and
    a busy node may have recovered. failures.attempts limits these starts. A job of one node fails at once.

    `next_start`: what the result says of the next start; None if the scheduler never starts the job again.
    """
    start = allocation_of(attempt)
    if start is None or len(start.nodes) == 1 or next_start is None or not job.failures.most_restarts:
        return failed(attempt, text, EXIT_CLUSTER)
    return ended(attempt, "lost", "node_fail", text=f"{text}\n{next_start}")
