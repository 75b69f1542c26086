"""Where the nodes of one start of a job meet: files in the attempt's folder.

rendezvous.json    the head writes it as soon as it knows its ports; the other nodes wait for it
nodes/<k>.json     each node says that it is there and what it has, or why it cannot take part
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from clustertrain.errors import StorageError
from clustertrain.launchers.slurm.agent.allocation import Allocation
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.version import __version__
from clustertrain.waiting import wait_until

_NAME = "rendezvous.json"


@dataclass(frozen=True)
class Rendezvous:
    """What a node needs to join.

    Attributes:
        ports: the head's block; the first is where Ray's head answers.
        token_path: where the head's node keeps the token; each node has its own copy, brought by the step.
    """

    attempt: int
    job_id: str
    restart: int
    head_address: str
    port: int
    ports: str
    token_path: str
    nodes: tuple[str, ...]
    version: str = __version__

    @property
    def ray_address(self) -> str:
        return f"{self.head_address}:{self.port}"

    def publish(self, attempt: Attempt) -> None:
        attempt.write(_NAME, asdict(self))


@dataclass(frozen=True)
class Arrival:
    """A node that is there. With `error` it takes no part: with the exit code that this means for the run, or
    without one where the node was lost on the way."""

    host: str
    address: str | None = None
    interface: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory_bytes: int | None = None
    ports: str | None = None
    error: str | None = None
    exit_code: int | None = None
    version: str = __version__
    time: float = field(default_factory=time.time)

    def publish(self, attempt: Attempt, node_rank: int) -> None:
        attempt.write(f"nodes/{node_rank}.json", asdict(self))


def wait_for_head(
    run: RunDir, allocation: Allocation, wait_s: float, poll_s: float, is_over: Callable[[], bool]
) -> tuple[Attempt, Rendezvous] | None:
    """Wait until the head of this start of the job has published its address; None where the attempt has
    ended before that, or `is_over` returns True.

    Raises:
        StorageError: it has not within `wait_s`; the likely cause is that this node sees another storage.
    """
    found: tuple[Attempt, Rendezvous] | None = None

    def is_decided() -> bool:
        nonlocal found
        if is_over():
            return True
        attempt = run.newest_attempt()
        if attempt is None:
            return False
        found = _published(attempt, allocation)
        return found is not None or _is_over(attempt, allocation)

    if not wait_until(is_decided, wait_s, poll_s):
        raise StorageError(
            f"{socket.gethostname()} finds no {_NAME} of job {allocation.job_id} under {run.uri} "
            f"after {wait_s:g} s.\n"
            f"{allocation.nodes[0]} writes it there: likely this path is another file system here. Give "
            "`storage` a path that all nodes share, or s3://…"
        )
    return found


def _published(attempt: Attempt, allocation: Allocation) -> tuple[Attempt, Rendezvous] | None:
    found = attempt.read(_NAME)
    if found is None or not _is_ours(found, allocation):
        return None
    return attempt, Rendezvous(**{**_known(Rendezvous, found), "nodes": tuple(found["nodes"])})


def arrivals(attempt: Attempt) -> dict[int, Arrival]:
    """The nodes that are there, by their rank."""
    return dict(_arrivals(attempt))


def _arrivals(attempt: Attempt) -> Iterator[tuple[int, Arrival]]:
    for name in attempt.run.store.list(f"{attempt.key}/nodes"):
        rank = name.removesuffix(".json")
        found = attempt.read(f"nodes/{name}") if rank.isdecimal() else None
        if found is not None:
            yield int(rank), Arrival(**_known(Arrival, found))


def _is_ours(found: dict[str, Any], allocation: Allocation) -> bool:
    return (found.get("job_id"), found.get("restart")) == (allocation.job_id, allocation.restart)


def _is_over(attempt: Attempt, allocation: Allocation) -> bool:
    claim = attempt.read("claim.json") or {}
    return _is_ours(claim.get("allocation") or {}, allocation) and attempt.read("result.json") is not None


def _known(cls: type[Rendezvous] | type[Arrival], found: dict[str, Any]) -> dict[str, Any]:
    """The fields that this version knows: another one is told apart by its version, not by an error here."""
    return {key: value for key, value in found.items() if key in cls.__dataclass_fields__}
