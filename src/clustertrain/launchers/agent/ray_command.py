"""The command and the environment with which an agent starts Ray on its node. Nothing here imports Ray."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clustertrain.driver.ray_cluster import Deadline, node_parameters
from clustertrain.job.model import Job
from clustertrain.node import variables
from clustertrain.node.ports import Ports
from clustertrain.node.ray_settings import RAY_ENVIRONMENT

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


def ports_needed(job: Job) -> int:
    """Return the number of ports that a node needs.

    It is one for each server and process of Ray, and four for a worker, which may restart.
    """
    return _HEAD_PORTS + len(_SERVER_PORTS) + _AUXILIARY_PROCESSES + 4 * job.resources.workers_per_node


def ray_command(
    job: Job,
    *,
    host: str,
    address: str,
    ports: Ports,
    folder: Path,
    events: Path,
    head: str | None,
    deadline: Deadline,
) -> list[str]:
    """Return the command that starts Ray (ray_process.py).

    It sets every port as well, because other jobs may share the node.

    Args:
        host: the name of this node.
        address: the address of this node.
        folder: a private folder, for Ray's files and sockets.
        events: the file for the events of this node.
        head: the address and port of the head, or None on the head itself.
        deadline: of the start.
    """
    resources, each = job.resources, job.resources.workers_per_node
    servers = range(ports.first + _HEAD_PORTS, ports.first + _HEAD_PORTS + len(_SERVER_PORTS))
    parameters: dict[str, object] = {
        **node_parameters(resources, each, address, folder),
        **({"gcs_server_port": ports.first} if head is None else {"gcs_address": head}),
        **dict(zip(_SERVER_PORTS, servers, strict=True)),
        "node_name": host,
        "min_worker_port": servers.stop,
        "max_worker_port": ports.last - each,  # the ports above are for the process groups of scripts
    }
    program = [sys.executable, "-P", "-m", "clustertrain.launchers.agent.ray_process"]
    program += [str(resources.cpus_per_worker), str(deadline.seconds), deadline.key]
    return [*program, str(events), json.dumps(parameters)]


def node_environment(
    environ: Mapping[str, str],
    *,
    token_path: Path,
    ports: Ports,
    code: Sequence[Path],
) -> dict[str, str]:
    """Return the environment of Ray on a node; the workers inherit it."""
    left_out = (*_TASK_VARIABLES, *_NOT_PASSED_ON)
    environment = {key: value for key, value in environ.items() if key not in left_out}
    environment |= RAY_ENVIRONMENT
    environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_path),
        variables.PORTS: str(ports),
        variables.CODE: os.pathsep.join(map(str, code)),
    }
    return environment
