"""The Ray cluster that was started for a job, by node agents or as pods: the driver connects, and waits."""

from __future__ import annotations

import os
import time

from clustertrain import variables
from clustertrain.errors import ClusterError, RunStopped
from clustertrain.node.network import answers, wait_for_answer
from clustertrain.node.ray_settings import WORKER_SLOT
from clustertrain.run.folder import Attempt
from clustertrain.run.rendezvous import arrivals

_POLL_S = 0.1


def own_head() -> str | None:
    """The address of the head, where a node agent started this driver."""
    return os.environ.get(variables.HEAD)


def own_head_is_gone() -> bool:
    """Whether the node agent's Ray ended, which then ends what was going on."""
    address, _, port = (own_head() or "").partition(":")
    return bool(address) and not answers(address, int(port))


def connect_to_own(attempt: Attempt, head: str, wait_s: float) -> None:
    """Connect, and wait until every node of the job is in.

    Raises:
        ClusterError: the head does not answer, or nodes are missing after `wait_s`; names them.
        RunStopped: a stop was requested meanwhile.
    """
    import ray

    ends = time.monotonic() + wait_s
    nodes = os.environ[variables.NODES].split(",")
    address, _, port = head.partition(":")
    if not wait_for_answer(address, int(port), wait_s):
        raise ClusterError(f"Ray's head does not answer at {head} after {wait_s:g} s: {_see(nodes[0])}.")
    ray.init(address=head, log_to_driver=False, _node_ip_address=address)
    while missing := _missing(nodes):
        if attempt.stop.read() is not None:
            raise RunStopped("Stopped before all nodes were there.", checkpointed=False)
        if time.monotonic() > ends:
            raise _not_all_came(attempt, nodes, missing, wait_s)
        time.sleep(_POLL_S)


def in_a_pod() -> bool:
    """Whether this is a pod of a RayJob that the kit rendered."""
    return variables.POD in os.environ


def connect_to_pods(attempt: Attempt, address: str, world_size: int, wait_s: float) -> None:
    """Connect, and wait for the pods. Raises as `wait_for_pods`."""
    import ray

    ray.init(address=address, log_to_driver=False)
    wait_for_pods(attempt, world_size, wait_s)


def wait_for_pods(attempt: Attempt, world_size: int, wait_s: float) -> None:
    """Wait until the pods of the workers are in: after the loss of a head, or of one of them, they come one
    by one.

    Raises:
        ClusterError: some are missing after `wait_s`.
        RunStopped: a stop was requested meanwhile.
    """
    import ray

    ends = time.monotonic() + wait_s
    while (there := ray.cluster_resources().get(WORKER_SLOT, 0)) < world_size:
        if attempt.stop.read() is not None:
            raise RunStopped("Stopped before all pods were there.", checkpointed=False)
        if time.monotonic() > ends:
            raise ClusterError(
                f"Waiting for pods of {world_size} workers, have {there:g} after {wait_s:g} s "
                "(kubernetes.start_deadline).\n`kubectl describe pod` says what the others wait for."
            )
        time.sleep(_POLL_S)


def _missing(nodes: list[str]) -> list[str]:
    import ray

    alive = {node["NodeName"] for node in ray.nodes() if node["Alive"]}
    return [node for node in nodes if node not in alive]


def _see(node: str) -> str:
    return f"`clustertrain logs --node {node}` shows what Ray printed there"


def _not_all_came(attempt: Attempt, nodes: list[str], missing: list[str], wait_s: float) -> ClusterError:
    """Who is missing, and how far each of them came."""
    there = {arrival.host for arrival in arrivals(attempt).values()}
    silent = [node for node in missing if node not in there]
    came = [node for node in missing if node in there]
    why = []
    if silent:
        why.append(f"{', '.join(silent)} never found {attempt.uri}: is that the same file system there?")
    if came:
        why.append(f"{', '.join(came)} found it, and their Ray did not reach the head: {_see(came[0])}.")
    return ClusterError(
        f"Waiting for {len(nodes)} nodes, have {len(nodes) - len(missing)} after {wait_s:g} s "
        f"(slurm.nodes_wait): {', '.join(missing)} did not come.\n" + "\n".join(why)
    )
