"""What a scheduler gave this node, read on the node itself: the allocation, never the machine.

A node is shared with other jobs, so what it has says nothing about what is ours. SLURM says it in variables;
a cgroup and the CPU affinity may hold us to less, and the least of them is what counts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clustertrain import variables
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.node.limits import read_limits
from clustertrain.run.records import SchedulerStart

_MIB = 2**20


@dataclass(frozen=True)
class Allocation:
    """One node's share of a SLURM job.

    Attributes:
        restart: how often SLURM started this job before.
        nodes: host names of all nodes of the job, as SLURM names them; node 0 runs the batch shell.
        node_rank: which of them this is.
        launch_address: the address of node 0 as SLURM uses it; None where it does not say.
        memory_bytes: None where nothing limits it.
    """

    cluster: str | None
    job_id: str
    restart: int
    nodes: tuple[str, ...]
    node_rank: int
    launch_address: str | None
    cpus: int
    gpus: int
    memory_bytes: int | None

    @property
    def host(self) -> str:
        return self.nodes[self.node_rank]

    @property
    def is_head(self) -> bool:
        return self.node_rank == 0

    @property
    def record(self) -> SchedulerStart:
        """As it stands in the claim of the attempt that this start of the job makes."""
        return SchedulerStart("slurm", self.cluster, self.job_id, self.restart, self.nodes)


def read_allocation(environ: Mapping[str, str] = os.environ) -> Allocation:
    """This node's share, from the variables of a SLURM step and from what the kernel holds us to.

    Raises:
        ClusterError: this process is no task of a SLURM step.
    """
    if "SLURM_JOB_ID" not in environ or "SLURM_NODEID" not in environ:
        raise ClusterError(
            "SLURM_JOB_ID and SLURM_NODEID are not set: this is no task of a SLURM step.\n"
            "The script that `clustertrain submit` sends starts this program; by hand: `clustertrain run`."
        )
    nodes = tuple(filter(None, environ.get(variables.NODES, "").split(",")))
    return Allocation(
        cluster=environ.get("SLURM_CLUSTER_NAME"),
        job_id=_job_id(environ),
        restart=int(environ.get("SLURM_RESTART_COUNT") or 0),
        nodes=nodes or (socket.gethostname(),),
        node_rank=int(environ["SLURM_NODEID"]),
        launch_address=environ.get("SLURM_LAUNCH_NODE_IPADDR"),
        cpus=_cpus(environ),
        gpus=_gpus(environ),
        memory_bytes=_memory_bytes(environ),
    )


def run_name(job: Job, environ: Mapping[str, str] = os.environ) -> str:
    """The run's name: each task of a job array is a run of its own."""
    index = environ.get("SLURM_ARRAY_TASK_ID")
    return f"{job.name}-{index}" if index else job.name


def check_room(job: Job, allocation: Allocation) -> None:
    """Refuse a node whose share is less than the job asks for: SLURM was asked for something else.

    Raises:
        ClusterError: with the arithmetic.
    """
    resources, each = job.resources, job.resources.workers_per_node
    memory_bytes = resources.memory_per_worker_bytes or 0
    requirements = (
        ("CPUs", resources.cpus_per_worker, allocation.cpus),
        ("GPUs", float(resources.gpus_per_worker), allocation.gpus),
        ("MiB of memory", memory_bytes / _MIB, _mib(allocation.memory_bytes)),
    )
    for what, per_worker, has in requirements:
        if has is not None and each * per_worker > has:
            raise ClusterError(
                f"{each} workers a node × {per_worker:g} {what} = {each * per_worker:g}, "
                f"and SLURM gave {allocation.host} {has:g}.\n"
                "The script was changed, or a cgroup holds the job to less. Render it anew with "
                "`clustertrain render --to slurm`, or lower `resources`."
            )


def _job_id(environ: Mapping[str, str]) -> str:
    """Of a task in an array, the name that squeue and scancel know: 12_3."""
    array, index = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else environ["SLURM_JOB_ID"]


def _cpus(environ: Mapping[str, str]) -> int:
    """SLURM's number, the affinity, and the cgroup's quota: the least of the three."""
    least = [len(os.sched_getaffinity(0))]
    if number := environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE"):
        least.append(int(number))
    if (quota := _cpu_quota()) is not None:
        least.append(max(1, int(quota)))
    return min(least)


def _cpu_quota() -> float | None:
    """CPUs that the cgroup of this process may use at once; None without a limit (version 2 alone)."""
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        quota, period = Path(f"/sys/fs/cgroup{group}/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _gpus(environ: Mapping[str, str]) -> int:
    """As many as CUDA may see; SLURM sets the variable to the GPUs of the job."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([gpu for gpu in visible.split(",") if gpu.strip() and gpu != "NoDevFiles"])
    return int(environ.get("SLURM_GPUS_ON_NODE") or 0)


def _memory_bytes(environ: Mapping[str, str]) -> int | None:
    """SLURM's number, where it has one, and each limit of a cgroup: the least of them."""
    least = [c.limit_bytes for c in read_limits().cgroups if c.limit_bytes is not None]
    if per_node := int(environ.get("SLURM_MEM_PER_NODE") or 0):  # 0 is SLURM's word for all of the node
        least.append(per_node * _MIB)
    elif per_cpu := int(environ.get("SLURM_MEM_PER_CPU") or 0):
        least.append(per_cpu * int(environ.get("SLURM_CPUS_ON_NODE") or 1) * _MIB)
    return min(least) if least else None


def _mib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / _MIB
