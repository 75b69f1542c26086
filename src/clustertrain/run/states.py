"""The states a run can be in, what causes them, the exit code of each, and whether it restarts by itself.

One table for code, docs and tests. `result.json` of the newest attempt holds a final state; the live ones
are derived from the attempt's claim, heartbeat and events, and from the scheduler's queue (see standing.py).
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
class State:
    """One row: `final` states end an attempt; a state that `restarts` is followed by another attempt."""

    name: str
    meaning: str
    causes: tuple[str, ...]
    exit_codes: tuple[int, ...]
    final: bool
    restarts: bool


STATES: dict[str, State] = {
    state.name: state
    for state in (
        State(
            "queued",
            "handed to a scheduler, which has not started it",
            ("scheduler", "requeued", "held"),
            (),
            False,
            False,
        ),
        State(
            "waiting",
            "started, waits for nodes or workers",
            ("nodes", "workers", "suspended"),
            (),
            False,
            False,
        ),
        State("staging", "data is on its way", ("data",), (), False, False),
        State("running", "workers train", ("training",), (), False, False),
        State("done", "trained to the end", ("finished",), (EXIT_DONE,), True, False),
        State(
            "failed",
            "ended by an error; the text names it",
            (
                "error",
                "same_error_twice",
                "retries_used_up",
                "not_finite",
                "out_of_memory",
                "limit",
                "job",
                "cluster",
                "data",
                "driver_died",
            ),
            (EXIT_FAILED, EXIT_JOB, EXIT_CLUSTER, EXIT_STORAGE),
            True,
            False,
        ),
        State(
            "stopped",
            "ended early because someone asked; run again to continue",
            ("user", "interrupt", "terminated", "interrupted_twice", "time_limit"),
            (EXIT_STOPPED, EXIT_INTERRUPTED),
            True,
            False,
        ),
        State(
            "preempted",
            "the scheduler took the nodes, and starts the job again",
            ("preempted", "requeued", "time_limit"),
            (EXIT_STOPPED, EXIT_INTERRUPTED),
            True,
            True,
        ),
        State("cancelled", "cancelled at the scheduler", ("cancelled",), (EXIT_INTERRUPTED,), True, False),
        State(
            "lost",
            "its processes are gone and none of them left a result",
            (
                "vanished",
                "preempted",
                "time_limit",
                "node_fail",
                "boot_fail",
                "out_of_memory",
                "revoked",
            ),
            (EXIT_FAILED,),
            True,
            True,
        ),
    )
}


CAUSE_OF_CODE = {EXIT_JOB: "job", EXIT_CLUSTER: "cluster", EXIT_STORAGE: "data"}
"""The cause of a failure whose exit code alone is known."""


def states_markdown() -> str:
    """The table as it stands in docs/failures.md."""
    rows = ["| state | meaning | causes | exit codes | restarts by itself |", "|---|---|---|---|---|"]
    for state in STATES.values():
        codes = ", ".join(str(code) for code in state.exit_codes) or "none yet"
        causes = ", ".join(state.causes)
        rows.append(
            f"| {state.name} | {state.meaning} | {causes} | {codes} | {'yes' if state.restarts else 'no'} |"
        )
    return "\n".join(rows) + "\n"
