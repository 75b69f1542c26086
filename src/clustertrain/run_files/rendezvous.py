"""The rendezvous of the nodes of one start of a job, by files in the attempt's folder.

rendezvous.json         the head writes it as soon as it knows its ports; the other nodes wait for it
nodes/<k>.json          each node writes that it has found the head
node-failures/<k>.json  a node writes why it cannot take part, or was lost, and the same in nodes/<k>.json

The head looks for failures as long as the run lasts. They have a folder of their own, so that a look is one
listing of an empty folder, and not the files of all nodes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from clustertrain.errors import StorageError
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.claims import allocation_of
from clustertrain.run_files.folder.run_dir import RENDEZVOUS, Attempt, RunDir
from clustertrain.run_files.records.scheduler import Arrival, Rendezvous, SchedulerStart


def wait_for_head(
    run: RunDir, start: SchedulerStart, wait_s: float, poll_s: float, is_over: Callable[[], bool]
) -> tuple[Attempt, Rendezvous] | None:
    """Wait until the head of this start of the job has published its address.

    Returns None if the attempt ends before that, or `is_over` returns True.

    Raises:
        StorageError: nothing was published within `wait_s` seconds; the likely cause is that this node
            accesses another storage.
    """
    found: tuple[Attempt, Rendezvous] | None = None

    def is_decided() -> bool:
        nonlocal found
        if is_over():
            return True
        attempt = run.newest_attempt()
        if attempt is None:
            return False
        published = attempt.rendezvous.read()
        if published is not None and (published.job_id, published.start) == (start.job_id, start.start):
            found = attempt, published
        return found is not None or _is_over(attempt, start)

    if not wait_until(is_decided, wait_s, poll_s):
        raise StorageError(
            f"{socket.gethostname()} finds no {RENDEZVOUS} of job {start.job_id} under {run.uri} "
            f"after {wait_s:g} s.\n"
            f"{start.nodes[0]} writes it there. Likely cause: this path is another file system here. Give "
            "`storage` a path that all nodes share, or s3://…"
        )
    return found


def arrivals(attempt: Attempt) -> dict[int, Arrival]:
    """Return the nodes that have found the head, by their rank."""
    found = ((rank, attempt.arrival(rank).read()) for rank in attempt.arrived())
    return {rank: arrival for rank, arrival in found if arrival is not None}


def report_failure(attempt: Attempt, node_rank: int, failure: Arrival) -> None:
    """Write why this node cannot take part, or was lost."""
    attempt.arrival(node_rank).write(failure)
    attempt.node_failure(node_rank).write(failure)


def failures(attempt: Attempt) -> list[Arrival]:
    """Return the reports of the nodes that cannot take part, or were lost, in the order of their ranks."""
    found = (attempt.node_failure(rank).read() for rank in attempt.failed_nodes())
    return [failure for failure in found if failure is not None]


def _is_over(attempt: Attempt, start: SchedulerStart) -> bool:
    made_by = allocation_of(attempt)
    is_ours = made_by is not None and (made_by.job_id, made_by.start) == (start.job_id, start.start)
    return is_ours and attempt.result.exists()
