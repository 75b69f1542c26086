"""The agent of the head node: publishes the rendezvous, starts Ray and the driver, supervises the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from clustertrain.errors import ClusterError, ClusterTrainError
from clustertrain.job.model import Job
from clustertrain.launchers.agent.node import NodeStart, PreparedNode, prepare_node, record_arrival, start_ray
from clustertrain.node import variables
from clustertrain.node.network import LOOPBACK, interface_of
from clustertrain.observe.screen import Screen
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import Rendezvous
from clustertrain.run_files.result import failed, write_result
from clustertrain.supervise.driver_process import start_driver
from clustertrain.supervise.process import Guarded
from clustertrain.supervise.supervisor import EndPolicy, supervise


def world_sizes_on(job: Job, nodes: Sequence[str]) -> list[int]:
    """Return the numbers of workers in [min, max] that fit on the nodes.

    Raises:
        ClusterError: no such number fits.
    """
    most = len(nodes) * job.resources.workers_per_node
    sizes = [size for size in job.world_sizes if size <= most]
    if not sizes:
        raise ClusterError(
            f"{len(nodes)} nodes × {job.resources.workers_per_node} workers = {most}, and the job needs "
            f"at least {job.world_sizes[0]} workers.\n"
            "The job got fewer nodes than the job file requests: render the script again, or lower the "
            "minimum of resources.workers."
        )
    return sizes


def run_attempt(
    start: NodeStart,
    attempt: Attempt,
    label: str,
    policy_with: Callable[[Guarded], EndPolicy],
    screen: Screen,
    *,
    owns_process: bool = True,
) -> Result:
    """Start Ray and the driver on the head node, and run the attempt to its end.

    Args:
        label: the name of the scheduler, for messages.
        policy_with: returns the policy of the attempt, with Ray on this node.
        owns_process: as for `supervise`.
    """
    try:
        node = prepare_node(start, _route_target(start))
        _publish_rendezvous(start, node, attempt)
        screen.echo(
            f"{attempt.run.name}: attempt {attempt.n} in {attempt.run.uri}, {label} job "
            f"{start.record.job_id} on {', '.join(start.record.nodes)}"
        )
        ray = start_ray(start, node, attempt, head=None)
    except ClusterTrainError as error:
        return write_result(attempt, failed(attempt, str(error), error.exit_code))
    return supervise(
        attempt,
        partial(_start_driver, start, node, attempt),
        policy_with(ray),
        screen,
        command=start.options.command,
        beside=[ray],
        owns_process=owns_process,
    )


def _route_target(start: NodeStart) -> str:
    """Return the host whose route determines the head's address.

    It is the scheduler's address of the head if an interface has it, else another node. For a job of one node
    it is the loopback address.
    """
    nodes, own = start.record.nodes, start.settings.own_address
    if len(nodes) == 1:
        return LOOPBACK
    return own if own is not None and interface_of(own) is not None else nodes[1]


def _publish_rendezvous(start: NodeStart, node: PreparedNode, attempt: Attempt) -> None:
    job = start.record
    rendezvous = Rendezvous(
        job_id=job.job_id,
        start=job.start,
        head_address=node.address,
        port=node.ports.first,
        token_path=str(node.token_path),
        nodes=job.nodes,
    )
    attempt.rendezvous.write(rendezvous)
    record_arrival(start, attempt)


def _start_driver(start: NodeStart, node: PreparedNode, attempt: Attempt) -> Guarded:
    """Start the driver while Ray starts: its imports take as long as the start of Ray on all nodes."""
    folder = start.folder / "driver"
    folder.mkdir(mode=0o700, exist_ok=True)  # it exists if both guardians of an earlier driver were killed
    environment = {
        **node.environment,
        variables.HEAD: f"{node.address}:{node.ports.first}",
        variables.NODES: ",".join(start.record.nodes),
    }
    return start_driver(attempt, folder, environment, shielded=True)
