"""The common part of all agents: reads the start, chooses address and ports, starts Ray."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clustertrain import variables
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.job.start_environment import hash_seed
from clustertrain.launchers.one_host import check_installed
from clustertrain.launchers.scheduler.in_job import read_start as read_start_of
from clustertrain.launchers.slurm.agent.allocation import (
    check_no_array,
    read_start_of_job,
)
from clustertrain.launchers.slurm.agent.ray_command import node_environment, ports_needed, ray_command
from clustertrain.node.network import address_towards
from clustertrain.node.ports import Ports, free_block
from clustertrain.node.user_folders import spool_base
from clustertrain.run.admission import Options
from clustertrain.run.folder.run_dir import Attempt, RunDir
from clustertrain.run.records.scheduler import Arrival, SchedulerStart
from clustertrain.supervise.private_folder import memory_folder, temporary_folder, write_token
from clustertrain.supervise.process import Guarded


@dataclass(frozen=True)
class Start:
    """One start of a SLURM job, as each of its nodes reads it.

    `record`: as the claim of its attempt has it; `node_rank`: the index of this node in `record.nodes`.
    """

    job: Job
    run: RunDir
    options: Options
    record: SchedulerStart
    node_rank: int
    folder: Path  # a private folder of this node with a short path
    code: Sequence[Path]

    @property
    def host(self) -> str:
        return self.record.nodes[self.node_rank]

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


def read_start(argument: str, folder: Path) -> Start:
    """Read the start of this agent's job from the snapshot of the submission, or from the job file.

    Raises:
        ClusterTrainError: the job is wrong, the snapshot is missing, this process is not in a SLURM step, or
            the SLURM job is an element of an array.
    """
    record, node_rank = read_start_of_job()
    job, run, options, code = read_start_of(argument, folder, "submit --to slurm")
    check_no_array(job, options.command)
    return Start(job, run, options, record, node_rank, folder, code)


def prepare_node(start: Start, route_target: str) -> Node:
    """Check this node and prepare it for Ray: address, ports, token, folder for temporary files.

    Args:
        route_target: a host; this node's address is that of the interface with the route to it.

    Raises:
        ClusterError: torch or Ray is not installed here, or there is no route to that host.
    """
    check_installed(start.host, "slurm.python")
    address = address_towards(route_target)
    ports = free_block(ports_needed(start.job), seed=int(os.environ["SLURM_JOB_ID"]))
    token_path = write_token(start.folder, os.environ[variables.TOKEN])
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
