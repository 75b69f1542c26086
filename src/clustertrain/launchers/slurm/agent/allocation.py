"""The resources that SLURM allocated to the job on this node, read on the node itself.

Other jobs may share the node, so its total resources are not the job's. SLURM sets variables with the
allocated amounts. The memory of its cgroups and the CPU affinity may limit the process further; the lowest
value applies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from clustertrain import variables
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.node.limits import read_limits
from clustertrain.run.command_line import UNKNOWN, CommandLine
from clustertrain.run.records import SchedulerStart

_MIB = 2**20
_OF_THE_STEP = ("SLURM_JOB_ID", "SLURM_NODEID", variables.NODES, variables.TOKEN, variables.MAIL)


def read_start_of_job(environ: Mapping[str, str] = os.environ) -> tuple[SchedulerStart, int]:
    """This start of the job, as the claim of its attempt records it, and the index of this node among its
    nodes; the first one runs the batch shell.

    Raises:
        ClusterError: the batch shell of a job has not started this process in a step.
    """
    if missing := [name for name in _OF_THE_STEP if not environ.get(name)]:
        raise ClusterError(
            f"{missing[0]} is not set: this process is not a task of the step of a batch script.\n"
            "The script of `clustertrain submit` starts this program. On one machine use `clustertrain run`."
        )
    nodes = tuple(environ[variables.NODES].split(","))
    cluster, restart = environ.get("SLURM_CLUSTER_NAME"), int(environ.get("SLURM_RESTART_COUNT") or 0)
    start = SchedulerStart("slurm", cluster, environ["SLURM_JOB_ID"], restart, nodes)
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


def check_resources(
    job: Job, host: str, command: CommandLine = UNKNOWN, environ: Mapping[str, str] = os.environ
) -> None:
    """Check that the allocation on this node has the resources that the job requires. It has less if the
    script was changed, or if a cgroup limits the job.

    Raises:
        ClusterError: it has less; the message shows the arithmetic.
    """
    resources, each = job.resources, job.resources.workers_per_node
    memory_bytes, allocated_bytes = resources.memory_per_worker_bytes or 0, _memory_bytes(environ)
    requirements = (
        ("CPUs", resources.cpus_per_worker, _cpus(environ)),
        ("GPUs", float(resources.gpus_per_worker), _gpus(environ)),
        ("MiB of memory", memory_bytes / _MIB, allocated_bytes and allocated_bytes / _MIB),
    )
    for what, per_worker, allocated in requirements:
        if allocated is not None and round(each * per_worker, 6) > allocated:
            raise ClusterError(
                f"{each} workers per node × {per_worker:g} {what} = {each * per_worker:g}, "
                f"and SLURM's allocation on {host} is {allocated:g}.\n"
                "The script was changed, or a cgroup limits the job. Render the script again with "
                f"`{command.on_job('render --to slurm')}`, or lower `resources`."
            )


def _cpus(environ: Mapping[str, str]) -> int:
    """The lower of SLURM's number and the CPU affinity."""
    limits = [len(os.sched_getaffinity(0))]
    if number := environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE"):
        limits.append(int(number))
    return min(limits)


def _gpus(environ: Mapping[str, str]) -> int:
    """The number of GPUs in CUDA_VISIBLE_DEVICES, which SLURM sets to those of the job."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([gpu for gpu in visible.split(",") if gpu.strip() and gpu != "NoDevFiles"])
    return int(environ.get("SLURM_GPUS_ON_NODE") or 0)


def _memory_bytes(environ: Mapping[str, str]) -> int | None:
    """The lowest of SLURM's number, if it sets one, and the limits of the cgroups; None without a limit."""
    limits = [c.limit_bytes for c in read_limits().cgroups if c.limit_bytes is not None]
    if per_node := int(environ.get("SLURM_MEM_PER_NODE") or 0):  # 0 means all of the node
        limits.append(per_node * _MIB)
    elif per_cpu := int(environ.get("SLURM_MEM_PER_CPU") or 0):
        limits.append(per_cpu * _cpus_of_job(environ) * _MIB)
    return min(limits) if limits else None


def _cpus_of_job(environ: Mapping[str, str]) -> int:
    """The CPUs of the job on this node, from a list for all nodes such as `4(x2),2`; those of a step may be
    fewer."""
    listed = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    cpus = [int(each) for each, times in listed for _ in range(int(times or 1))]
    index = int(environ.get("SLURM_NODEID") or 0)
    return cpus[index] if index < len(cpus) else int(environ.get("SLURM_CPUS_ON_NODE") or 1)
