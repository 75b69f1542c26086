"""`exec`: runs a command on the node of a rank, with the rank and its pid in the environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clustertrain.errors import JobError
from clustertrain.launchers.scheduler.interface import Sent, here
from clustertrain.launchers.scheduler.status import Registered
from clustertrain.launchers.shell import attached
from clustertrain.node import variables
from clustertrain.run_files.claims import claim_of, who_runs
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.streams.history import newest_group, ranks_of


def host_and_argv(
    ranks: Iterable[Mapping[str, Any]], rank: int, run: str, command: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the name of the host on which a rank runs, and the command with the variables of the rank.

    Args:
        ranks: of the newest start of the workers.

    Raises:
        JobError: there is no such rank.
    """
    found = {each.get("rank"): each for each in ranks}
    if rank not in found:
        known = f"its ranks are 0 to {len(found) - 1}" if found else "its workers have not started"
        raise JobError(f"{run} has no rank {rank}: {known}.\nName a rank that runs.")
    pid = int(found[rank].get("pid") or 0)
    return str(found[rank].get("host")), ["env", f"RANK={rank}", f"{variables.PID}={pid}", *command]


def exec_on_rank(queue: Registered, run: RunDir, rank: int, command: Sequence[str]) -> int:
    """Run a command on the node of a rank, with this terminal, and return its exit code.

    Raises:
        JobError: the run is not running, or has no such rank.
        ClusterError: the node is another machine, which only a shell of its own reaches.
    """
    attempt = run.newest_attempt()
    if attempt is None or who_runs(attempt) is None:
        shows = command_on(run.uri, "status")
        raise JobError(f"{run.name} is not running, so no node has its ranks.\n`{shows}` shows its state.")
    host, argv = host_and_argv(ranks_of(newest_group(attempt)), rank, run.name, command)
    start = claim_of(attempt).allocation
    if start is None:
        return attached(here(host, argv))
    names = {node.partition(".")[0]: node for node in start.nodes}  # the scheduler may name it otherwise
    node = names.get(host.partition(".")[0], host)
    return attached(queue.scheduler.command_on(Sent(start.job_id, place=start.place), node, argv))
