"""The agent of each node except the head: finds the head, starts Ray, and waits for the attempt to end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from clustertrain.errors import ClusterError, ClusterTrainError, StorageError
from clustertrain.launchers.agent.node import (
    TERM_SIGNALS,
    NodeLost,
    NodeStart,
    prepare_node,
    ray_ended,
    record_arrival,
    start_ray,
)
from clustertrain.node.network import is_listening, is_refused
from clustertrain.node.version import __version__
from clustertrain.node.waiting import wait_until
from clustertrain.observe.screen import Lines
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.scheduler import Arrival, Rendezvous
from clustertrain.run_files.rendezvous import report_failure, wait_for_head
from clustertrain.run_files.streams.stream_upload import StreamUpload
from clustertrain.supervise.process import Guarded

RESULT_WITHIN_S = 8.0  # the head ends Ray first, and writes the result after all processes have ended


def run_on_worker_node(start: NodeStart, signals: Sequence[int]) -> int:
    """Find the head, start Ray, wait until the attempt has its result, and return the exit code."""
    screen = Lines(sys.stdout)
    found = wait_for_head(
        start.run,
        start.record,
        start.settings.nodes_wait.seconds,
        start.poll_s,
        is_over=lambda: not TERM_SIGNALS.isdisjoint(signals),
    )
    if found is None:
        return 0
    attempt, rendezvous = found
    try:
        _check_version(rendezvous, start)
        node = prepare_node(start, rendezvous.head_address)
        record_arrival(start, attempt)
        with StreamUpload(attempt, screen.echo):
            ray = start_ray(start, node, attempt, rendezvous.ray_address)
            try:
                _wait_for_end(start, attempt, ray, rendezvous)
            finally:
                ray.end()
    except ClusterTrainError as error:  # the head reports it as well, because users read the head's log
        code = None if isinstance(error, NodeLost) else error.exit_code
        arrival = Arrival(start.host, error=str(error), exit_code=code)
        report_failure(attempt, start.node_rank, arrival)
        raise
    return 0


def _check_version(rendezvous: Rendezvous, start: NodeStart) -> None:
    if rendezvous.version != __version__:
        raise ClusterError(
            f"{start.host} has clustertrain {__version__}, and {rendezvous.nodes[0]} has "
            f"{rendezvous.version}.\n"
            "All nodes need the same version: install it on each node, or set "
            f"{start.python_key} to a Python that all nodes share."
        )


def is_over(attempt: Attempt) -> bool:
    """Return whether the attempt has its result, or another attempt has begun.

    If the storage fails, return False, so that the fault costs no node: the ports show the head's end.
    """
    with suppress(StorageError):
        return attempt.result.exists() or attempt.run.attempt_after(attempt.n) is not None
    return False


def _wait_for_end(start: NodeStart, attempt: Attempt, ray: Guarded, head: Rendezvous) -> None:
    """Return when the attempt has its result, or another attempt has begun.

    Raises:
        NodeLost: Ray ended on this node, or the head's Ray ended and the attempt got no result.
    """
    impatient = attempt.run.with_patience(0).attempt(attempt.n)

    def is_head_up() -> bool:
        return is_listening(head.head_address, head.port)

    head_was_up = False
    while not is_over(impatient):
        if ray.code() is not None:  # if the head has ended, Ray ends here too, and the result names the cause
            if wait_until(lambda: is_over(impatient), start.poll_s, start.poll_s):
                return
            raise ray_ended(start.host, ray)
        if not head_was_up:
            head_was_up = is_head_up()
        elif is_refused(head.head_address, head.port) and not wait_until(
            lambda: is_over(impatient) or is_head_up(),  # a failed start of Ray is repeated
            RESULT_WITHIN_S,
            start.poll_s,
        ):
            raise NodeLost(
                f"Ray on {head.nodes[0]} ended, and the agent there wrote no result: it was killed as well.\n"
                "The next start continues the run."
            )
        time.sleep(start.poll_s)
