"""The agent that one step of a SLURM job runs on every node; the head's does what `clustertrain run` does.

    batch shell ─▶ srun ─▶ agent on each node ─▶ Ray          on every node, under a guardian
                                        └──────▶ driver       on the head, under another (node_head.py)

It takes from the machine what the allocation gave, and leaves nothing on it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from clustertrain import __version__
from clustertrain.allocation import Allocation, check_room, read_allocation, run_name
from clustertrain.errors import ClusterError, ClusterTrainError, RunStopped
from clustertrain.guarded import REQUESTS_TO_END, Guarded, private_folder, remove, signals_heard, write_token
from clustertrain.guardian import become_subreaper, kill_descendants
from clustertrain.job import Job
from clustertrain.jobfile import load_job
from clustertrain.mailbox import Mailbox
from clustertrain.network import address_towards, answers, interface_of, is_refused, nccl_needs_to_know
from clustertrain.observe.progress import Lines
from clustertrain.observe.shipping import Shipping
from clustertrain.ports import Ports, free_block
from clustertrain.ray_node import node_environment, ports_needed, ray_command
from clustertrain.rendezvous import Arrival, Rendezvous, wait_for_head
from clustertrain.run_dir import Attempt, RunDir
from clustertrain.site import missing_for_training
from clustertrain.starting import Options
from clustertrain.submission import Submission

_LAST_WORD_S = 8.0  # the head ends Ray first, and writes its result when nothing is left


@dataclass(frozen=True)
class Start:
    """One start of a job, as each of its nodes knows it."""

    job: Job
    run: RunDir
    options: Options
    allocation: Allocation
    folder: Path  # private, on this node; short
    code: str

    @property
    def poll_s(self) -> float:
        """Between two looks at the storage; on S3 each is a request that somebody pays for."""
        return 2.0 if self.run.is_spooled else 0.3


@dataclass(frozen=True)
class Node:
    """What this node brings to the cluster."""

    address: str
    interface: str | None
    ports: Ports
    token_path: Path
    environment: dict[str, str]


def main(argument: str) -> int:
    """Take part in a SLURM job until it ends; returns the exit code.

    Args:
        argument: the job file, or what `clustertrain submit` said (a Submission as text).
    """
    from clustertrain.node_head import serve_head

    become_subreaper()
    mail = Mailbox.of_this_job()
    if mail is not None:
        mail.say_hello()
    folder = private_folder()
    try:
        heard = Heard()
        with signals_heard(heard, REQUESTS_TO_END):
            start = read_start(argument, folder)
            return serve_head(start, heard, mail) if start.allocation.is_head else _serve_worker(start, heard)
    except (ClusterTrainError, RunStopped) as error:
        Lines(sys.stderr).say(f"error: {error}")
        if mail is not None:
            mail.decide("end", error.exit_code)
        return error.exit_code
    finally:
        kill_descendants()
        remove(folder)


class NodeLost(ClusterError):
    """Ray ended on a node in the middle of a run: another start may find the node well."""


class Heard:
    """Requests to end that signals brought, counted. SLURM sends its signals to every task: the head decides
    what follows from them."""

    def __init__(self) -> None:
        self.leads = 0
        self.terms = 0

    def __call__(self, number: int, frame: object) -> None:
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            self.leads += 1
        else:
            self.terms += 1


def read_start(argument: str, folder: Path) -> Start:
    """What is to be done here: from the submission's snapshot, or from the job file as it lies there.

    Raises:
        ClusterTrainError: the job is wrong, the snapshot is not there, or this is no SLURM step.
    """
    allocation = read_allocation()
    if not argument.startswith("{"):
        job = load_job(argument)
        run = RunDir.newest(job.storage.location, run_name(job))
        return Start(job, run, Options(), allocation, folder, job.code)
    submission = Submission.from_text(argument)
    job = submission.job()
    submission.unpack_code(folder / "code")
    run = submission.run
    if run_name(job) != run.name:
        run = RunDir.newest(job.storage.location, run_name(job))
    options = Options(
        takeover=submission.takeover,
        allow_world_size_change=submission.allow_world_size_change,
        retry=submission.retry and not allocation.restart,
    )
    return Start(job, run, options, allocation, folder, str(folder / "code"))


def join(start: Start, towards: str) -> Node:
    """Find out what this node has for the job: address, interface, ports, token.

    Args:
        towards: a node to be reached; its own name where there is only one.

    Raises:
        ClusterError: there is no Ray here, the allocation is smaller than the job, or there is no way to the
            other node.
    """
    allocation, gpus = start.allocation, start.job.resources.gpus_per_worker
    _check_installed(allocation)
    check_room(start.job, allocation)
    address = address_towards(towards)
    interface = interface_of(address)
    seed = sum(allocation.job_id.encode()) + allocation.restart
    ports = free_block(ports_needed(start.job), seed=seed)
    token = os.environ.get("CLUSTERTRAIN_TOKEN")
    if not token:
        raise ClusterError(
            "CLUSTERTRAIN_TOKEN is not set, so that the nodes would share no secret.\n"
            "The script that `clustertrain render --to slurm` writes makes one and starts this program."
        )
    token_path = write_token(start.folder, token)
    needs_name = gpus > 0 and interface is not None and nccl_needs_to_know(interface)
    temporary = start.folder / "tmp"
    temporary.mkdir(mode=0o700)
    environment = node_environment(
        {**os.environ, "TMPDIR": str(temporary)},
        token_path=token_path,
        interface=interface,
        nccl_interface=interface if needs_name else None,
        ports=ports,
        code=start.code,
    )
    return Node(address, interface, ports, token_path, environment)


def _check_installed(allocation: Allocation) -> None:
    """The submit side does without."""
    if missing := missing_for_training():
        raise ClusterError(
            f"{sys.executable} on {allocation.host} has no {' and no '.join(missing)}.\n"
            "pip install 'clustertrain[train]' there, or let slurm.python name a Python that has it."
        )


def start_ray(start: Start, node: Node, attempt: Attempt, head: str | None) -> Guarded:
    """Ray on this node; its output goes to ray.log, beside the logs of the node's ranks."""
    host = start.allocation.host
    ray_folder = start.folder / "ray"
    ray_folder.mkdir(mode=0o700)
    command = ray_command(
        start.job, host=host, address=node.address, ports=node.ports, folder=ray_folder, head=head
    )
    log = attempt.path / "logs" / host / "ray.log"
    return Guarded(command, log, ray_folder, node.environment, shielded=True)


def arrive(start: Start, node: Node, attempt: Attempt) -> None:
    """Say that this node is there, and what it has."""
    allocation = start.allocation
    Arrival(
        allocation.host,
        address=node.address,
        interface=node.interface,
        cpus=allocation.cpus,
        gpus=allocation.gpus,
        memory_bytes=allocation.memory_bytes,
        ports=str(node.ports),
    ).publish(attempt, allocation.node_rank)


def _serve_worker(start: Start, heard: Heard) -> int:
    """Find the head, start Ray, and stay until the attempt has its result."""
    allocation, screen = start.allocation, Lines(sys.stdout)
    found = wait_for_head(
        start.run, allocation, start.job.slurm.nodes_wait_s, start.poll_s, is_over=lambda: heard.terms > 0
    )
    if found is None:
        return 0
    attempt, rendezvous = found
    try:
        _check_version(rendezvous, allocation)
        node = join(start, rendezvous.head_address)
        arrive(start, node, attempt)
        with Shipping(attempt, screen.say):
            ray = start_ray(start, node, attempt, rendezvous.ray_address)
            try:
                _stay(start, attempt, ray, rendezvous)
            finally:
                ray.end()
    except ClusterTrainError as error:  # the head tells it: it is the head's log that people read
        code = None if isinstance(error, NodeLost) else error.exit_code
        Arrival(allocation.host, error=str(error), exit_code=code).publish(attempt, allocation.node_rank)
        raise
    return 0


def _check_version(rendezvous: Rendezvous, allocation: Allocation) -> None:
    if rendezvous.version != __version__:
        raise ClusterError(
            f"{allocation.host} has clustertrain {__version__}, and {rendezvous.nodes[0]} has "
            f"{rendezvous.version}.\n"
            "All nodes need the same: install it on each, or let slurm.python name one that all of them see."
        )


def _stay(start: Start, attempt: Attempt, ray: Guarded, head: Rendezvous) -> None:
    """Until the attempt has its result, or another one began.

    Raises:
        NodeLost: Ray ended on this node, or on the head's without a word.
    """
    head_was_up = False
    while not _is_over_within(start, attempt, 0):
        if ray.code() is not None:  # the end of the head ends Ray here, too, and its result says more
            if _is_over_within(start, attempt, start.poll_s):
                return
            raise ray_ended(start.allocation.host, ray)
        if not head_was_up:
            head_was_up = answers(head.head_address, head.port)
        elif is_refused(head.head_address, head.port) and not _is_over_within(start, attempt, _LAST_WORD_S):
            raise NodeLost(
                f"Ray on {head.nodes[0]} is gone, and its agent leaves no result: it was killed, too.\n"
                "The next start of the run goes on from the newest checkpoint."
            )
        time.sleep(start.poll_s)


def _is_over_within(start: Start, attempt: Attempt, seconds: float) -> bool:
    """Whether the attempt has its result by then, or another one began."""
    ends = time.monotonic() + seconds
    while True:
        newest = start.run.newest_attempt()
        if attempt.read("result.json") is not None or (newest is not None and newest.n != attempt.n):
            return True
        if time.monotonic() >= ends:
            return False
        time.sleep(min(start.poll_s, seconds))


def ray_ended(host: str, ray: Guarded) -> NodeLost:
    """What to say of a node whose Ray is gone."""
    ray.end()
    return NodeLost(f"Ray on {host} {ray.how_it_ended()}. The end of {ray.log}:\n{ray.last_lines()}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
