"""Checks before the submission that the cluster has the resources that a job requests.

With EnforcePartLimits=NO, SLURM's default, a cluster accepts a job that can never start, and the job waits
forever. Whether a partition exists and takes jobs, SLURM says itself: `sbatch --test-only` in preflight.py.
The output of `sinfo` is read as columns, which every version prints. Its JSON comes from a plugin that may be
missing and changes between versions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.shell import run
from clustertrain.launchers.slurm.script import (
    RAY_AND_DRIVER_BYTES,
    cpus_per_node,
    gpus_per_node,
    memory_per_node_bytes,
)
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.launchers.slurm.times import slurm_duration_s
from clustertrain.units import duration_text

ANSWER_S = 20.0
# Partition, availability, time limit, default time, nodes that a job may have, number of these nodes, CPUs of
# a node, CPUs of it that a job may use, MB, generic resources. Nodes with the same values share one line.
_COLUMNS = "%P|%a|%l|%L|%s|%D|%c|%B|%m|%G"
_MAX_LISTED = 8
_MIB = 1 << 20


@dataclass(frozen=True)
class Nodes:
    """Nodes of a partition with the same resources. `gres` is as SLURM writes it: `gpu:2`,
    `gpu:a100:4(S:0-1),gpu:1g.5gb:7`, `(null)`."""

    count: float
    cpus: float
    memory_mib: float
    gres: str

    def gpus(self, gpu_type: str | None) -> int:
        """Its GPUs of a type, or all of them."""
        found = re.findall(r"\bgpu(?::([^:,()]+))?:(\d+)(?![\w.])", self.gres)
        return sum(int(count) for each, count in found if gpu_type in (None, each))


@dataclass(frozen=True)
class Partition:
    """A partition in the output of `sinfo`. Without a limit a time or a number is math.inf.

    Attributes:
        job_time_s: the time limit of a job that sets none.
    """

    name: str
    is_default: bool
    availability: str
    time_limit_s: float
    job_time_s: float
    max_nodes: float
    nodes: tuple[Nodes, ...]


def partitions(environ: Mapping[str, str]) -> list[Partition]:
    """The partitions of the cluster.

    Raises:
        ClusterError: sinfo is not on PATH, or SLURM does not answer.
    """
    argv = ["sinfo", "--all", "--exact", "--noheader", f"--format={_COLUMNS}"]
    return parse(run(argv, environ=environ, timeout_s=ANSWER_S).stdout)


def parse(output: str) -> list[Partition]:
    """Parse the output of `sinfo`, which has one line for each kind of nodes in each partition."""
    found: dict[str, Partition] = {}
    for line in output.splitlines():
        fields = [part.strip() for part in line.split("|", 9)]
        if len(fields) < 10:
            continue
        name, availability, time_limit, default_time, sizes, count, cpus, max_cpus, memory, gres = fields
        nodes = Nodes(_int(count), min(_int(cpus), _int(max_cpus, math.inf)), _int(memory), gres)
        earlier = found.get(name)
        limit_s = slurm_duration_s(time_limit) or math.inf
        found[name] = Partition(
            name=name.rstrip("*"),
            is_default=name.endswith("*"),
            availability=availability,
            time_limit_s=limit_s,
            job_time_s=slurm_duration_s(default_time) or limit_s,
            max_nodes=_int(sizes.rpartition("-")[2], math.inf),
            nodes=(*(earlier.nodes if earlier else ()), nodes),
        )
    return list(found.values())


def without_limits(known: Sequence[Partition], qos: str, environ: Mapping[str, str]) -> list[Partition]:
    """The partitions, without the limits that do not hold for jobs of this QOS."""
    argv, flags = ["sacctmgr", "--noheader", "--parsable2", "show", "qos", qos, "format=Flags"], ""
    with suppress(ClusterError):
        flags = run(argv, environ=environ, timeout_s=ANSWER_S, check=False).stdout
    if "PartitionTimeLimit" in flags:
        known = [replace(each, time_limit_s=math.inf) for each in known]
    if "PartitionMaxNodes" in flags:
        known = [replace(each, max_nodes=math.inf) for each in known]
    return [*known]


def not_usable_now(partition: Partition, environ: Mapping[str, str]) -> list[str]:
    """The nodes of a partition that SLURM gives to no job now, with their state and the noted reason.

    Raises:
        ClusterError: sinfo is not on PATH, or SLURM does not answer.
    """
    argv = ["sinfo", "--noheader", f"--partition={partition.name}", "--format=%N|%T|%E"]
    output = run(argv, environ=environ, timeout_s=ANSWER_S).stdout
    lines = [line.split("|", 2) for line in output.splitlines() if line.count("|") > 1]
    nodes = [f"{names} ({state}: {why})" for names, state, why in lines if _NOT_USABLE.search(state)]
    return nodes[:_MAX_LISTED]


_NOT_USABLE = re.compile(r"down|drain|fail|maint|reserved|unknown|\*")  # *: the node does not answer


def _int(text: str, otherwise: float = 0) -> float:
    """Parse a number; sinfo appends '+' if the nodes of a line have different numbers."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else otherwise


# -------------------------------------------------------------------------------------------- the checks


def check_partition(job: Job, known: Sequence[Partition], requested: str | None) -> Partition | None:
    """The first of the requested partitions that can run the job; None if there is none of these names.

    Args:
        requested: names of partitions, separated by commas; None is the cluster's default partition.

    Raises:
        ClusterError: none of them could ever run the job; the message names the missing resource.
    """
    names = requested.split(",") if requested is not None else []
    chosen = [each for each in known if (each.name in names if names else each.is_default)]
    problems = [_problem(job, partition) for partition in chosen]
    if not chosen or None in problems:
        return chosen[problems.index(None)] if chosen else None
    others = [each.name for each in known if each.availability == "up" and _problem(job, each) is None]
    remedy = (
        f"Partitions that could run it: {_listed(others)}." if others else "No partition here could run it."
    )
    raise ClusterError(f"{problems[0]}\n{remedy}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _problem(job: Job, partition: Partition) -> str | None:
    """The reason why the job could never run in the partition, or None if it could run."""
    name, time_s, nodes = f"partition {partition.name}", job.section(Slurm).time_limit_s, job.node_counts[0]
    if time_s is not None and time_s > partition.time_limit_s:
        limit = duration_text(partition.time_limit_s)
        return f"slurm.time_limit is {duration_text(time_s)}, and {name} allows {limit}."
    if nodes > partition.max_nodes:
        return f"resources.nodes is {nodes}, and {name} allows at most {partition.max_nodes} per job."
    return _shortage(job, partition)


def _shortage(job: Job, partition: Partition) -> str | None:
    """The first resource that the nodes have too little of, or None if enough nodes have all of them. Each
    resource is checked on the nodes that have enough of the resources before it."""
    name, candidates, shape = f"partition {partition.name}", partition.nodes, job.resources
    gpu_type, each_mib = job.section(Slurm).gpu_type, (shape.memory_per_worker_bytes or 0) / _MIB
    gpus = f"GPUs of type {gpu_type}" if gpu_type else "GPUs"
    memory_mib = math.ceil((memory_per_node_bytes(job) or 0) / _MIB)
    memory = f"{each_mib:g} MiB + {RAY_AND_DRIVER_BYTES // _MIB} MiB for Ray"
    # Each with its part in the sum, the name of its unit, the required amount, and the amount of a node.
    amounts: list[tuple[str, str, int, Callable[[Nodes], float]]] = [
        (f"{shape.cpus_per_worker:g} CPUs", "CPUs", cpus_per_node(job), lambda node: node.cpus),
        (memory, "MiB of memory", memory_mib, lambda node: node.memory_mib),
        (f"{shape.gpus_per_worker} GPUs", gpus, gpus_per_node(job), lambda node: node.gpus(gpu_type)),
    ]
    for of_worker, what, required, amount in amounts:
        fitting = tuple(node for node in candidates if amount(node) >= required)
        if not fitting:
            most = max(map(amount, candidates), default=0)
            has = _listed([*dict.fromkeys(node.gres for node in partition.nodes)])
            types = f" It has {has}: without a type leave out slurm.gpu_type."
            return (
                f"{shape.workers_per_node} workers × {of_worker} = {required} {what} on each node, "
                f"and a node of {name} has at most {most}." + (types if what == gpus and gpu_type else "")
            )
        candidates = fitting
    nodes, count = job.node_counts[0], sum(node.count for node in candidates)
    if count < nodes:
        each = ", ".join(f"{required} {what}" for _, what, required, _ in amounts if required)
        return f"resources.nodes is {nodes}, with {each} each, and {name} has {count} such nodes."
    return None
