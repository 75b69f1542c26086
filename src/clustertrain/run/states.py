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
            "submitted to a scheduler, not started yet",
            ("scheduler", "requeued", "held"),
            (),
            False,
            False,
        ),
        State(
            "waiting",
            "started, waiting for nodes or workers",
            ("nodes", "workers", "suspended"),
            (),
            False,
            False,
        ),
        State("staging", "fetching the data", ("data",), (), False, False),
        State("running", "training", ("training",), (), False, False),
        State("done", "training is complete", ("finished", "early_stop"), (EXIT_DONE,), True, False),
        State(
            "failed",
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
            True,
            False,
        ),
        State(
            "stopped",
            "ended early on request; run again to continue",
            ("user", "interrupt", "terminated", "interrupted_twice", "time_limit", "preempted"),
            (EXIT_STOPPED, EXIT_INTERRUPTED),
            True,
            False,
        ),
        State(
            "preempted",
            "the scheduler took the nodes back and will restart the job",
            ("preempted", "requeued", "time_limit"),
            (EXIT_STOPPED, EXIT_INTERRUPTED),
            True,
            True,
        ),
        State(
            "cancelled",
            "cancelled in the scheduler",
            ("cancelled",),
            (EXIT_INTERRUPTED, EXIT_STOPPED),
            True,
            False,
        ),
        State(
            "lost",
            "its processes are gone and none wrote a result",
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
"""The cause of a failure of which only the exit code is known."""

CODE_OF_CAUSE = {cause: code for code, cause in CAUSE_OF_CODE.items()}


def states_markdown() -> str:
    """The table in docs/failures.md."""
    rows = ["| state | meaning | causes | exit codes | restarts automatically |", "|---|---|---|---|---|"]
    for state in STATES.values():
        codes = ", ".join(str(code) for code in state.exit_codes) or "none yet"
        causes = ", ".join(state.causes)
        rows.append(
            f"| {state.name} | {state.meaning} | {causes} | {codes} | {'yes' if state.restarts else 'no'} |"
        )
    return "\n".join(rows) + "\n"
