"""The agent of the head node.

It claims the attempt, publishes the rendezvous, and starts Ray and the driver. It ends the run when SLURM
ends the job (end_policy.py), and writes the verdict for the batch shell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial

from clustertrain import variables
from clustertrain.errors import EXIT_DONE, ClusterError, ClusterTrainError
from clustertrain.job.model import Job
from clustertrain.launchers.scheduler.in_job import run_to_its_end
from clustertrain.launchers.slurm.agent.end_policy import SlurmEndPolicy
from clustertrain.launchers.slurm.agent.mailbox import Mailbox
from clustertrain.launchers.slurm.agent.node import Node, Start, prepare_node, record_arrival, start_ray
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.node.network import LOOPBACK, interface_of
from clustertrain.observe.screen import Lines, Screen
from clustertrain.run.admission import was_stopped_by_user
from clustertrain.run.folder.run_dir import Attempt
from clustertrain.run.records.result import Result
from clustertrain.run.records.scheduler import Rendezvous
from clustertrain.run.result import failed, write_result
from clustertrain.run.states import STATES
from clustertrain.supervise.driver_process import start_driver
from clustertrain.supervise.process import Guarded
from clustertrain.supervise.supervisor import supervise

_REQUEUED_CAUSES = ("preempted", "node_fail", "time_limit")  # "requeued": SLURM has already done it


def run_on_head(start: Start, signals: Sequence[int], mail: Mailbox) -> int:
    """Run the attempt to its end, and return the exit code; the batch shell ends with the same one."""
    result = _run(start, signals, mail, Lines(sys.stdout))
    code = EXIT_DONE if result is None else result.exit_code
    restarts = result is not None and STATES[result.state].restarts and result.cause in _REQUEUED_CAUSES
    requeue = restarts and start.job.section(Slurm).requeue
    mail.write_verdict("requeue" if requeue else "end", code)
    return code


def _run(start: Start, signals: Sequence[int], mail: Mailbox, screen: Screen) -> Result | None:
    if was_stopped_by_user(start.run, start.record):
        screen.echo(
            f"{start.run.name} was stopped by its user, and SLURM restarted its job: nothing is started."
        )
        return None
    return run_to_its_end(
        start.job,
        start.options,
        start.record,
        screen,
        world_sizes=lambda: _world_sizes(start.job, start.record.nodes),
        supervise=lambda attempt: _supervise(start, attempt, signals, mail, screen),
        run=start.run,
    )


def _world_sizes(job: Job, nodes: Sequence[str]) -> list[int]:
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
            "SLURM allocated fewer nodes than the job file requests: render the script again, or lower the "
            "minimum of resources.workers."
        )
    return sizes


def _supervise(
    start: Start, attempt: Attempt, signals: Sequence[int], mail: Mailbox, screen: Screen
) -> Result:
    try:
        node = prepare_node(start, _route_target(start))
        _publish_rendezvous(start, node, attempt)
        screen.echo(
            f"{attempt.run.name}: attempt {attempt.n} in {attempt.run.uri}, SLURM job "
            f"{start.record.job_id} on {', '.join(start.record.nodes)}"
        )
        ray = start_ray(start, node, attempt, head=None)
    except ClusterTrainError as error:
        return write_result(attempt, failed(attempt, str(error), error.exit_code))
    policy = SlurmEndPolicy(start, attempt, ray, signals, mail, screen)
    return supervise(
        attempt,
        partial(_start_driver, start, node, attempt),
        policy,
        screen,
        command=start.options.command,
        beside=[ray],
    )


def _route_target(start: Start) -> str:
    """Return the host whose route determines the head's address.

    It is SLURM's address of the head if an interface has it, else another node. For a job of one node it is
    the loopback address.
    """
    nodes, own = start.record.nodes, os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if len(nodes) == 1:
        return LOOPBACK
    return own if own is not None and interface_of(own) is not None else nodes[1]


def _publish_rendezvous(start: Start, node: Node, attempt: Attempt) -> None:
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


def _start_driver(start: Start, node: Node, attempt: Attempt) -> Guarded:
    """Start the driver while Ray starts: its imports take as long as the start of Ray on all nodes."""
    folder = start.folder / "driver"
    folder.mkdir(mode=0o700, exist_ok=True)  # it exists if both guardians of an earlier driver were killed
    environment = {
        **node.environment,
        variables.HEAD: f"{node.address}:{node.ports.first}",
    }
    return start_driver(attempt, folder, environment, shielded=True)
