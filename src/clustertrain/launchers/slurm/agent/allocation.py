"""The start of the SLURM job that this process is a task of, as its agents read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from clustertrain.driver.ray_cluster import Deadline
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.agent.node import AgentSettings, NodeStart
from clustertrain.launchers.scheduler.in_job import read_start as read_start_of
from clustertrain.launchers.slurm.queue import place_of
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.node import variables
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.records.scheduler import SchedulerStart


def read_start(argument: str, folder: Path) -> NodeStart:
    """Read the start of this agent's job from the snapshot of the submission, or from the job file.

    Raises:
        ClusterTrainError: the job is wrong, the snapshot is missing, or the SLURM job is an element of an
            array.
    """
    record, node_rank = read_start_of_job()
    job, run, options, code = read_start_of(argument, folder, "submit --to slurm")
    check_no_array(job, options.command)
    token = os.environ[variables.TOKEN]
    return NodeStart(job, run, options, record, node_rank, folder, code, settings_of(job), token)


def settings_of(job: Job) -> AgentSettings:
    """Return what the agents of the job need to know of SLURM."""
    slurm = job.section(Slurm)
    return AgentSettings(
        Deadline(slurm.nodes_wait_s, "slurm.nodes_wait"),
        "The job goes back into the queue." if slurm.requeue else None,
        os.environ.get("SLURM_LAUNCH_NODE_IPADDR"),
    )


def read_start_of_job(environ: Mapping[str, str] = os.environ) -> tuple[SchedulerStart, int]:
    """Return this start of the job, as the claim of its attempt records it, and the index of this node.

    The index is the node's position among the nodes of the job; the first one runs the batch shell.
    """
    nodes = tuple(environ[variables.NODES].split(","))
    place, restart = place_of(environ.get("SLURM_CLUSTER_NAME")), environ.get("SLURM_RESTART_COUNT") or "0"
    start = SchedulerStart("slurm", environ["SLURM_JOB_ID"], place, restart, nodes)
    return start, int(environ["SLURM_NODEID"])


def check_no_array(job: Job, command: CommandLine) -> None:
    """Check that this SLURM job is not an element of an array (sbatch --array, or SBATCH_ARRAY_INX).

    Raises:
        ClusterError: it is one.
    """
    if index := os.environ.get("SLURM_ARRAY_TASK_ID"):
        raise ClusterError(
            f"This job is element {index} of a job array, and all its elements would be the run {job.name}.\n"
            f"A job for each point of a sweep: {command} --grid KEY=V1,V2"
        )
