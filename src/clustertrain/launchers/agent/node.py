"""The common part of all agents: what they know of the start, address and ports, the start of Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clustertrain.driver.ray_cluster import Deadline
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.job.start_environment import hash_seed
from clustertrain.launchers.agent.ray_command import node_environment, ports_needed, ray_command
from clustertrain.launchers.one_host import check_installed
from clustertrain.node import variables
from clustertrain.node.network import address_towards
from clustertrain.node.ports import Ports, free_block
from clustertrain.node.signals import REQUESTS_TO_END
from clustertrain.node.user_folders import spool_base
from clustertrain.run_files.admission import Options
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.records.scheduler import Arrival, SchedulerStart
from clustertrain.supervise.private_folder import memory_folder, temporary_folder, write_token
from clustertrain.supervise.process import Guarded

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
class Start:
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
class Node:
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


def prepare_node(start: Start, route_target: str) -> Node:
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
    own = {
        "TMPDIR": str(temporary_folder(start.folder)),
        variables.MEMORY_DIR: str(memory_folder(start.folder)),
        variables.SPOOL: str(spool_base()),
        **hash_seed(start.job),
    }
    environment = node_environment(
        {**os.environ, **own},
        token_path=token_path,
        ports=ports,
        code=start.code,
    )
    return Node(address, ports, token_path, environment)


def _seed(job_id: str) -> int:
    """Return a number for each ID of a job, which may have letters."""
    return int("".join(each for each in job_id if each.isdecimal()) or "0")


def start_ray(start: Start, node: Node, attempt: Attempt, head: str | None) -> Guarded:
    """Start Ray on this node; its output goes to the folder with the logs of the node's ranks."""
    host = start.host
    ray_folder = start.folder / "ray"
    ray_folder.mkdir(mode=0o700)
    command = ray_command(
        start.job,
        host=host,
        address=node.address,
        ports=node.ports,
        folder=ray_folder,
        events=attempt.node_events(host),
        head=head,
        deadline=start.settings.nodes_wait,
    )
    log = attempt.ray_log(host)
    return Guarded(command, log, ray_folder, node.environment, shielded=True)


def record_arrival(start: Start, attempt: Attempt) -> None:
    """Record in the storage that this node has found the head."""
    attempt.arrival(start.node_rank).write(Arrival(start.host))


def ray_ended(host: str, ray: Guarded) -> NodeLost:
    """End a node's Ray, and return the error for a node whose Ray has ended."""
    ray.end()
    return NodeLost(f"Ray on {host} {ray.how_it_ended()}. The end of {ray.log}:\n{ray.last_lines()}")
