"""Makes the process group of a task or function, with a deadline of its own.

If the deadline passes, its message names the ranks that are missing.

Each rank notes in torch's TCPStore, which is on rank 0, that it has reached it. When the deadline has passed,
a rank reads these notes through a second connection, because the first one is blocked by the thread that
waits, and ends; the driver then starts the group again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # type: ignore[attr-defined]

from clustertrain.node.network import LOOPBACK, is_listening
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.worker import nccl_transport
from clustertrain.worker.setup import worker_state
from clustertrain.worker.watchdog import WatchdogThread

_CONNECT_S = 30.0
_ANSWER_S = 3.0
_PAUSE_S = 1.0
_REACHED = "clustertrain-reached"
_MOST_NODES = 8  # named in a message


@dataclass(frozen=True)
class GroupSpec:
    """The process group that all ranks make.

    Attributes:
        backend: "nccl" or "gloo".
        address, port: of the store, on rank 0.
        hosts: the host name of each rank.
        timeout_s: of its collectives.
    """

    backend: str
    address: str
    port: int
    hosts: tuple[str, ...]
    timeout_s: float


def join_process_group(spec: GroupSpec) -> None:
    """Make the process group on this rank.

    The process ends if that takes longer than failures.watchdog.process_group.
    """
    plan, rank = worker_state.plan, worker_state.place.rank
    attempt = plan.ref.open()
    restart = attempt.restart(plan.restart)
    events = EventLog(attempt.node_events(socket.gethostname()))
    is_traced = False
    if spec.backend == "nccl":
        is_traced = nccl_transport.write_lines_to(restart.nccl_log(rank))
    with WatchdogThread(
        {"process_group": plan.job.failures.watchdog.process_group_s},
        worker_state.note_hang,
        worker_state.stacks,
        explain=lambda: what_is_missing(spec),
    ) as watchdog:
        watchdog.beat("process_group")
        make_process_group(spec, rank)
    if is_traced:
        nccl_transport.forget_settings()
        _report_transport(spec, rank, restart, events)


def make_process_group(spec: GroupSpec, rank: int) -> None:
    """Make torch's default process group. It returns when this rank is connected to those that it needs."""
    store = _store(spec, rank)
    store.set_timeout(timedelta(seconds=spec.timeout_s))
    store.set(f"{_REACHED}/{rank}", "")
    device = None
    if spec.backend == "nccl":
        device = worker_state.place.device
        torch.cuda.set_device(device)
    dist.init_process_group(
        spec.backend,
        store=dist.PrefixStore("default_pg", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=len(spec.hosts),
        timeout=timedelta(seconds=spec.timeout_s),
        device_id=device,  # NCCL connects now, and not in the first collective
    )
    if device is not None:
        # NCCL makes some connections in the first collective that needs them.
        dist.all_reduce(torch.zeros(1, device=device))
        torch.cuda.synchronize(device)


def _store(spec: GroupSpec, rank: int) -> Any:
    """Open the store; a rank that is not rank 0 waits for it.

    torch's own socket would listen on all addresses.
    """
    listens = None
    if rank == 0 and spec.address == LOOPBACK:
        listens = socket.create_server((spec.address, spec.port)).detach()
    while True:
        try:
            return TCPStore(
                spec.address,
                spec.port,
                is_master=rank == 0,
                timeout=timedelta(seconds=_CONNECT_S),
                wait_for_workers=False,
                master_listen_fd=listens,
            )
        except (DistNetworkError, DistStoreError):
            if rank == 0:
                raise
            time.sleep(_PAUSE_S)


def what_is_missing(spec: GroupSpec) -> str:
    """Return which ranks have not reached rank 0."""
    at = f"rank 0 on {spec.hosts[0]} at {spec.address}:{spec.port}"
    silent = f"{at} does not answer on {socket.gethostname()}"
    if not is_listening(spec.address, spec.port, _ANSWER_S):  # TCPStore tries longer than its timeout
        return silent
    try:
        answer = timedelta(seconds=_ANSWER_S)
        store = TCPStore(spec.address, spec.port, is_master=False, timeout=answer, wait_for_workers=False)
        missing = [rank for rank in range(len(spec.hosts)) if not store.check([f"{_REACHED}/{rank}"])]
    except (DistNetworkError, DistStoreError):
        return silent
    if not missing:
        return f"all ranks have reached {at}, and are not all connected to each other by {spec.backend}"
    count = f"{len(missing)} of {len(spec.hosts)} ranks have not reached {at}"
    return f"{count}: {ranks_by_node(missing, spec.hosts)}"


def ranks_by_node(ranks: Iterable[int], hosts: Sequence[str]) -> str:
    """Return the ranks for a message: "rank 3 on node1, ranks 4, 5 on node2"."""
    by_node: dict[str, list[str]] = {}
    for rank in ranks:
        by_node.setdefault(hosts[rank], []).append(str(rank))
    parts = [f"rank{'s' * (len(of) > 1)} {', '.join(of)} on {host}" for host, of in by_node.items()]
    more = len(parts) - _MOST_NODES
    return ", ".join(parts[:_MOST_NODES]) + (f" and those on {more} more nodes" if more > 0 else "")


def _report_transport(spec: GroupSpec, rank: int, restart: Any, events: EventLog) -> None:
    """Write what NCCL chose on this node; the first rank of the node does, for all of them."""
    host = spec.hosts[rank]
    here = [each for each, of in enumerate(spec.hosts) if of == host]
    if rank != here[0]:
        return
    logs = [restart.nccl_log(each) for each in here]
    transport = nccl_transport.transport_of(log.read_text(errors="replace") for log in logs if log.exists())
    if transport is None:
        return
    events.write("transport", host=host, text=transport.text(host), **asdict(transport))
    if (problem := transport.problem(host)) is not None:
        events.write("warning", text=problem)
