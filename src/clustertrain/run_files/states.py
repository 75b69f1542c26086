"""The states of a run, their causes and exit codes, and whether a scheduler restarts a run in that state.

One table for code, docs and tests. `result.json` of the newest attempt contains a final state. The other
states are derived from the attempt's claim, heartbeat and events, and from the scheduler's queue (see
run_state.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from clustertrain.errors import (
    EXIT_CLUSTER,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_JOB,
    EXIT_STOPPED,
    EXIT_STORAGE,
)


@dataclass(frozen=True)
class StateRow:
    """One row. A state with `exit_codes` ends an attempt; one that `restarts` is followed by another one."""

    meaning: str
    causes: tuple[str, ...]
    exit_codes: tuple[int, ...] = ()
    restarts: bool = False

    @property
    def final(self) -> bool:
        """Whether it ends an attempt."""
        return bool(self.exit_codes)


STATES = {
    "queued": StateRow("submitted to a scheduler, not started yet", ("scheduler", "requeued", "held")),
    "waiting": StateRow("started, waiting for nodes or workers", ("nodes", "workers", "suspended")),
    "staging": StateRow("fetching the data", ("data",)),
    "running": StateRow("training", ("training",)),
    "done": StateRow("training is complete", ("finished", "early_stop"), (EXIT_DONE,)),
    "failed": StateRow(
        "ended by an error; the message names it",
        (
            "error",
            "same_error_twice",
            "retries_used_up",
            "not_finite",
            "out_of_memory",
            "limit",
            "gpu",
            "job",
            "cluster",
            "data",
            "driver_died",
        ),
        (EXIT_FAILED, EXIT_JOB, EXIT_CLUSTER, EXIT_STORAGE),
    ),
    "stopped": StateRow(
        "ended early on request; run again to continue",
        ("user", "interrupt", "terminated", "interrupted_twice", "time_limit", "preempted"),
        (EXIT_STOPPED, EXIT_INTERRUPTED),
    ),
    "preempted": StateRow(
        "the scheduler took the nodes back and will restart the job",
        ("preempted", "requeued", "time_limit"),
        (EXIT_STOPPED, EXIT_INTERRUPTED),
        restarts=True,
    ),
    "cancelled": StateRow("cancelled in the scheduler", ("cancelled",), (EXIT_INTERRUPTED, EXIT_STOPPED)),
    "lost": StateRow(
        "its processes are gone and none wrote a result",
        ("vanished", "time_limit", "node_fail"),
        (EXIT_FAILED,),
        restarts=True,
    ),
}


CAUSE_OF_CODE = {EXIT_JOB: "job", EXIT_CLUSTER: "cluster", EXIT_STORAGE: "data"}
"""The cause of a failure of which only the exit code is known."""

CODE_OF_CAUSE = {cause: code for code, cause in CAUSE_OF_CODE.items()}
