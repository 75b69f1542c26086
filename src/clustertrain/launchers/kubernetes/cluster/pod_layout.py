"""How many nodes a job with GPUs runs on, where the job does not say: read from the nodes of the cluster.

The workers of a node share one pod, because GPUs of separate pods exchange gradients without NVLink. The
result is a job with `resources.nodes`, so rendering stays pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Forbidden, Kubectl
from clustertrain.launchers.kubernetes.cluster.node_room import (
    Object,
    allocatable,
    eligible_nodes,
    pods_held,
    requests_of,
)
from clustertrain.launchers.kubernetes.render.amounts import counted, needs_nodes, nodes_missing
from clustertrain.launchers.kubernetes.render.manifests import ray_job
from clustertrain.launchers.kubernetes.render.paths import PodJob
from clustertrain.launchers.kubernetes.render.rayjob_rules import check_rayjob
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.shell import CommandMissing, Unanswered
from clustertrain.run.admission import Options


def with_nodes(job: Job, kubectl: Kubectl) -> tuple[Job, list[str]]:
    """The job with `resources.nodes`, and a note about it. Unchanged if it has them or needs none.

    Args:
        job: merged with the site file.

    Raises:
        JobError: the nodes cannot be read, or the workers cannot be divided among them.
    """
    if not needs_nodes(job) and job.resources.min_workers == job.resources.max_workers:
        return job, []
    try:
        nodes = kubectl.list("nodes")
    except (Forbidden, CommandMissing, Unanswered) as error:
        if not needs_nodes(job):
            return job, []
        first = str(error).splitlines()[0].rstrip(".")
        raise nodes_missing(job, f"the nodes of the cluster cannot be read ({first})") from None
    job, notes = divided(job, nodes) if needs_nodes(job) else (job, [])
    job, fewer = fitted(job, nodes)
    return job, [*notes, *fewer]


def fitted(job: Job, nodes: Sequence[Object]) -> tuple[Job, list[str]]:
    """The job with a range of workers that ends at the number for which these nodes have room, and a note.

    KubeRay starts a run only when all of its pods run. Unchanged if all have room, if fewer than the minimum
    have, or if the cluster adds nodes; also without GPUs, because the head's pod needs a part of the CPUs.
    """
    shape = job.resources
    if not shape.gpus_per_worker:
        return job, []
    per_pod = shape.workers_per_node if shape.nodes is not None else 1
    most = pods_held(_worker_pod(job), nodes) * per_pod
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
        f"resources.workers is taken as [{shape.min_workers}, {sizes[-1]}] instead of "
        f"[{shape.min_workers}, {shape.max_workers}]: the nodes of the cluster have room for "
        f"{counted('worker', most)}, and KubeRay starts a run when all of its pods run"
    )
    return _with(job, **update), [note]


def divided(job: Job, nodes: Sequence[Object]) -> tuple[Job, list[str]]:
    """The job with as few pods as these nodes allow, each with the same number of workers; and a note.

    Raises:
        JobError: as `with_nodes`.
    """
    gpu, each = job.section(Kubernetes).gpu_resource, job.resources.gpus_per_worker
    for laid_out in _layouts(job):
        pod = _worker_pod(laid_out)
        if pods_held(pod, nodes) >= laid_out.resources.min_nodes:
            break
    else:
        most = max((int(allocatable(node, gpu)) for node in nodes), default=0)
        why = f"the present nodes cannot hold the workers (the largest has {most} {gpu})"
        raise nodes_missing(job, f"{why}, and no others are known")
    largest = max(int(allocatable(node, gpu)) for node in eligible_nodes(pod, nodes))
    workers = laid_out.resources.workers_per_node
    has = f"the largest node has {largest} {gpu}"
    if workers == 1 and largest >= 2 * each:
        why = "no larger number of workers per node divides them evenly and fits (GPUs, CPUs, memory, disk)"
        raise nodes_missing(job, f"{has}, and {why}")
    given = laid_out.resources.nodes
    shown = [*given] if isinstance(given, tuple) else given
    product = f"{counted('worker', workers)} × {counted('GPU', each)} = {counted('GPU', workers * each)}"
    return laid_out, [f"resources.nodes is taken as {shown}: {product} in each pod, and {has}"]


def _with(job: Job, **resources: object) -> Job:
    return job.model_copy(update={"resources": job.resources.model_copy(update=resources)})


def _range(least: int, most: int) -> int | tuple[int, int]:
    return least if least == most else (least, most)


def _layouts(job: Job) -> Iterator[Job]:
    """The job with each number of nodes that gives every pod the same number of workers, the fewest first."""
    shape = job.resources
    common = math.gcd(shape.min_workers, shape.max_workers)
    for workers in range(common, 0, -1):
        if common % workers:
            continue
        nodes = _range(shape.min_workers // workers, shape.max_workers // workers)
        candidate = _with(job, nodes=nodes)
        if candidate.node_counts:
            yield candidate


def _worker_pod(job: Job) -> Object:
    """The workers' pod with the patches of the job: of several groups, the one with the most GPUs.

    Raises:
        JobError: KubeRay would refuse the RayJob.
    """
    rayjob = ray_job(PodJob.of(job), "config", Options())
    check_rayjob(rayjob)
    groups = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    gpu = job.section(Kubernetes).gpu_resource
    pods: list[Object] = [group["template"]["spec"] for group in groups]
    return max(pods, key=lambda pod: requests_of(pod).get(gpu, 0))
