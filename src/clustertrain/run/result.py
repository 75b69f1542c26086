"""result.json: how an attempt ended. Written once: by the driver, or by `clustertrain run` or the
head's node agent where it died.

state, cause    a row of states.STATES
exit_code       what `clustertrain run` ended with
text            two or three lines for people; empty where all went well
step, epoch, metrics, checkpoint, restarts, redone_steps, world_size, train_s, ended_at
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from clustertrain.checkpoints.manifest import CheckpointDamaged, CheckpointName, Shelf, names, read_manifest
from clustertrain.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
)
from clustertrain.run.events import read_events
from clustertrain.run.folder import Attempt
from clustertrain.run.states import CAUSE_OF_CODE, STATES
from clustertrain.run.step_counter import reached_step


@dataclass(frozen=True)
class Result:
    """How an attempt ended."""

    state: str
    cause: str
    exit_code: int
    text: str = ""
    step: int = 0
    epoch: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str | None = None
    restarts: int = 0
    redone_steps: int = 0
    world_size: int | None = None
    train_s: float | None = None
    ended_at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if self.cause not in STATES[self.state].causes:
            raise ValueError(f"{self.cause!r} is no cause of state {self.state!r}: see states.STATES.")


def read_result(attempt: Attempt) -> Result | None:
    """The result of an attempt, None while it has none."""
    value = attempt.read("result.json")
    known = Result.__dataclass_fields__
    return Result(**{key: v for key, v in value.items() if key in known}) if value else None


def write_result(attempt: Attempt, result: Result) -> Result:
    """Write it unless there is one already; returns the one that stands."""
    data = json.dumps(asdict(result), indent=1, sort_keys=True).encode() + b"\n"
    attempt.run.store.create_exclusive(f"{attempt.key}/result.json", data)
    return read_result(attempt) or result


def ended(
    attempt: Attempt, state: str, cause: str, *, exit_code: int | None = None, text: str = ""
) -> Result:
    """The result of an attempt that is over, its figures gathered from what it left on disk."""
    restarts = attempt.restarts()
    outcome = _newest_outcome(attempt, restarts)
    reached = [reached_step(attempt, restart) for restart in restarts]
    resumed = [e for e in read_events(attempt.run, attempt.events_key) if e["kind"] == "resumed"]
    claim = attempt.read("claim.json") or {}
    checkpoints = names(attempt.run.checkpoints)
    if exit_code is None:
        exit_code = _exit_code(attempt, state)
    return Result(
        state=state,
        cause=cause,
        exit_code=exit_code,
        text=text,
        step=outcome.get("step") or max(reached, default=0),
        epoch=outcome.get("epoch"),
        metrics=outcome.get("metrics") or {},
        checkpoint=str(checkpoints[-1]) if checkpoints else None,
        restarts=max(restarts, default=0),
        redone_steps=sum(int(e.get("redone_steps", 0)) for e in resumed),
        world_size=claim.get("world_size"),
        train_s=_train_s(outcome),
    )


def _newest_outcome(attempt: Attempt, restarts: list[int]) -> dict[str, Any]:
    """What rank 0 said at the end of the last start of the group; empty where it never came to say it."""
    if not restarts:
        return {}
    return attempt.run.read_json(f"{attempt.restart_key(restarts[-1])}/outcome.json") or {}


def _train_s(outcome: dict[str, Any]) -> float | None:
    return outcome["train_ended"] - outcome["train_started"] if "train_ended" in outcome else None


def _exit_code(attempt: Attempt, state: str) -> int:
    if state in ("stopped", "preempted"):
        return _stop_code(attempt)
    return {"done": EXIT_DONE, "cancelled": EXIT_INTERRUPTED}.get(state, EXIT_FAILED)


def _stop_code(attempt: Attempt) -> int:
    """75 where something can be continued, 130 where nothing could be saved."""
    shelf = attempt.run.checkpoints
    if found := names(shelf):
        saved = any(_has_manifest(shelf, name) for name in reversed(found))
    else:
        saved = bool(shelf.store.list(shelf.key))  # a script names its own as it likes
    return EXIT_STOPPED if saved else EXIT_INTERRUPTED


def _has_manifest(shelf: Shelf, name: CheckpointName) -> bool:
    try:
        read_manifest(shelf, name)
    except CheckpointDamaged:
        return False
    return True


def outcome_of(attempt: Attempt) -> dict[str, Any]:
    """What the last start of the group said at its end; empty where it died."""
    return _newest_outcome(attempt, attempt.restarts())


def stopped(attempt: Attempt) -> Result:
    """Ended early: the request says why, and a scheduler's request what state that leaves the run in."""
    request = attempt.asked("stop") or {}
    state, cause = str(request.get("state", "stopped")), str(request.get("cause", "user"))
    return ended(attempt, state, cause, text=str(request.get("text", "")))


def failed(attempt: Attempt, text: str, exit_code: int) -> Result:
    """Ended by an error of the kit's, whose exit code tells its kind."""
    return ended(attempt, "failed", CAUSE_OF_CODE.get(exit_code, "error"), exit_code=exit_code, text=text)
