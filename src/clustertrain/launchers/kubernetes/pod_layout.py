"""How many nodes a job with GPUs runs on, where the job does not say: read from the nodes of the cluster.

The workers of a node share one pod, because GPUs of separate pods exchange gradients without NVLink. The
result is a job with `resources.nodes`, so rendering stays pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.capacity import (
    Object,
    PodGroup,
    allocatable,
    amount_text,
    eligible_nodes,
    how_many_fit,
    pod_groups_of,
    why_no_nodes,
)
from clustertrain.launchers.kubernetes.kubectl import Forbidden, Kubectl, NoAnswer
from clustertrain.launchers.kubernetes.render.amounts import counted, needs_nodes, nodes_missing
from clustertrain.launchers.kubernetes.render.manifests import ray_job
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.shell import CommandMissing
from clustertrain.run.admission import Options
from clustertrain.run.command_line import UNKNOWN, CommandLine


def with_nodes(job: Job, kubectl: Kubectl, command: CommandLine = UNKNOWN) -> tuple[Job, list[str]]:
    """The job with `resources.nodes`, and a note about it. Unchanged if it has them or needs none.

    Args:
        job: merged with the site file.
        command: what submits the job, for messages.

    Raises:
        JobError: the nodes cannot be read, or the workers cannot be divided among them.
        ClusterError: no node can hold one worker.
    """
    if not needs_nodes(job) and job.resources.min_workers == job.resources.max_workers:
        return job, []
    try:
        nodes = kubectl.list("nodes")
    except (Forbidden, CommandMissing, NoAnswer) as error:
        if not needs_nodes(job):
            return job, []
        raise _unreadable(job, error) from None
    job, notes = divided(job, nodes, command) if needs_nodes(job) else (job, [])
    job, fewer = fitted(job, nodes)
    return job, [*notes, *fewer]


def _unreadable(job: Job, error: Forbidden | CommandMissing | NoAnswer) -> JobError:
    if isinstance(error, Forbidden):
        return nodes_missing(job, f"this account may not {error.what}")
    first = str(error).splitlines()[0].rstrip(".")
    return nodes_missing(job, f"the nodes of the cluster cannot be read ({first})")


def fitted(job: Job, nodes: Sequence[Object]) -> tuple[Job, list[str]]:
    """The job with a range of workers that ends at the number for which these nodes have room, and a note.

    KubeRay starts a run only when all of its pods run. Unchanged if all have room, if fewer than the minimum
    have, or if the cluster adds nodes; also without GPUs, because the head's pod needs a part of the CPUs.
    """
    shape = job.resources
    if not shape.gpus_per_worker:
        return job, []
    pods = _worker_pods(job)
    held = sum(how_many_fit(pods, node) for node in eligible_nodes(pods, nodes))
    per_pod = shape.workers_per_node if shape.nodes is not None else 1
    most = held * per_pod
    if job.section(Kubernetes).autoscaled or not shape.min_workers <= most < shape.max_workers:
        return job, []
    sizes = [size for size in job.world_sizes if size <= most and size % per_pod == 0]
    if not sizes:
        return job, []
    update: dict[str, object] = {}
    if shape.workers is not None:
        update["workers"] = _range(shape.min_workers, sizes[-1])
    if shape.nodes is not None:
        update["nodes"] = _range(shape.min_nodes, sizes[-1] // per_pod)
    note = (
        f"note: resources.workers is taken as [{shape.min_workers}, {sizes[-1]}] instead of "
        f"[{shape.min_workers}, {shape.max_workers}]: the nodes of the cluster have room for "
        f"{counted('worker', most)}, and KubeRay starts a run when all of its pods run"
    )
    return job.model_copy(update={"resources": shape.model_copy(update=update)}), [note]


def divided(job: Job, nodes: Sequence[Object], command: CommandLine = UNKNOWN) -> tuple[Job, list[str]]:
    """The job with as few pods as these nodes allow, each with the same number of workers; and a note.

    Raises:
        JobError, ClusterError: as `with_nodes`.
    """
    layouts = [*_layouts(job)]
    found = next((each for each in layouts if each.held_by(nodes) >= each.pods.pods), None)
    if found is None:
        why = why_no_nodes([layouts[-1].pods], nodes, command) if nodes else None
        if why is None or job.section(Kubernetes).autoscaled:
            raise nodes_missing(job, "the present nodes cannot hold the workers, and no others are known")
        raise ClusterError(why)
    gpu = job.section(Kubernetes).gpu_resource
    largest = max(allocatable(node, gpu) for node in eligible_nodes(found.pods, nodes))
    has = f"the largest node has {amount_text(gpu, largest)} {gpu}"
    each, workers = job.resources.gpus_per_worker, found.workers
    if workers == 1 and largest >= 2 * each:
        raise nodes_missing(job, f"{has}, and no larger number of workers per node divides them evenly")
    given = found.job.resources.nodes
    shown = [*given] if isinstance(given, tuple) else given
    product = f"{counted('worker', workers)} × {counted('GPU', each)} = {counted('GPU', workers * each)}"
    return found.job, [f"note: resources.nodes is taken as {shown}: {product} in each pod, and {has}"]


def _range(least: int, most: int) -> int | tuple[int, int]:
    return least if least == most else (least, most)


@dataclass(frozen=True)
class _Layout:
    """A job with a number of nodes. `workers`: in each pod; `pods`: the fewest with which it trains."""

    job: Job
    workers: int
    pods: PodGroup

    def held_by(self, nodes: Sequence[Object]) -> int:
        return sum(how_many_fit(self.pods, node) for node in eligible_nodes(self.pods, nodes))


def _layouts(job: Job) -> Iterator[_Layout]:
    """The layouts that give every pod the same number of workers, that with the fewest pods first."""
    shape = job.resources
    common = math.gcd(shape.min_workers, shape.max_workers)
    for workers in range(common, 0, -1):
        if common % workers:
            continue
        least, most = shape.min_workers // workers, shape.max_workers // workers
        resources = shape.model_copy(update={"nodes": least if least == most else (least, most)})
        candidate = job.model_copy(update={"resources": resources})
        if candidate.node_counts:
            yield _Layout(candidate, workers, replace(_worker_pods(candidate), pods=least))


def _worker_pods(job: Job) -> PodGroup:
    """The group of the workers' pods, with the patches of the job."""
    groups = pod_groups_of(ray_job(job, "config", Options()))
    return max(groups[1:], key=lambda group: group.requests.get(job.section(Kubernetes).gpu_resource, 0))
