"""The status of a run as `status` and `status --json` print it, and the parser of the latter.

The parser is for machines that cannot access the run's storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clustertrain.observe.as_json import as_json, last_printed
from clustertrain.observe.run_state import RunState
from clustertrain.observe.status import Row, Status
from clustertrain.observe.tables import status_rows
from clustertrain.run_files.streams.history import newest_group, ranks_of


@dataclass(frozen=True)
class StoredStatus:
    """The status of a run, by its files and its scheduler.

    Attributes:
        attempt: the newest attempt.
        began_at: when that attempt was claimed.
        state: one of the table of states.
        cause: one of the causes of that state.
        text: the reason of the state, such as the error of a run that failed.
        over: the run has ended, and nothing will restart it automatically.
        of_result: the state is from the result of the newest attempt.
        exit_code: null while the run has not ended.
        step: the newest step that is known; null before the first, and for a script that logs none.
        ettr: productive seconds / all since the first submission or start; null before that.
        device_hours: GPU-hours that the ranks held, or CPU-hours.
        seconds: wall seconds of each category of the ledger, by its name.
        rows: the table that `status` prints.
        ranks: rank, host, pid and gpus of each worker that was started last, as in the event `group_started`.
    """

    attempt: int | None = None
    began_at: float = 0.0
    state: str = "waiting"
    cause: str = "workers"
    text: str = ""
    over: bool = False
    of_result: bool = False
    exit_code: int | None = None
    step: int | None = None
    ettr: float | None = None
    device_hours: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    ranks: tuple[Mapping[str, Any], ...] = ()

    @property
    def standing(self) -> RunState:
        return RunState(self.state, self.cause, self.text, self.over, of_result=self.of_result)

    def told(self) -> tuple[str, RunState]:
        """Return the line for each change of state, and the standing."""
        return self.standing.line, self.standing

    @classmethod
    def parsed(cls, printed: str) -> StoredStatus | None:
        """Return the last line that is a StoredStatus, or None."""
        return last_printed(cls, printed)

    @classmethod
    def of(cls, status: Status) -> StoredStatus:
        """Return the status of a run with what the table of `status` shows.

        A run that waits for its first start has only its state.
        """
        attempt, standing = status.attempt, status.standing
        claim = status.files.claim
        return cls(
            attempt=attempt.n if attempt is not None else None,
            began_at=claim.time if claim is not None else 0.0,
            state=standing.state,
            cause=standing.cause,
            text=status.result.text if status.result is not None else standing.text,
            over=standing.over,
            of_result=standing.of_result,
            exit_code=status.exit_code,
            step=status.step,
            ettr=status.ledger.ettr,
            device_hours=status.ledger.device_hours,
            seconds=status.ledger.by_category(),
            rows=tuple(status_rows(status)),
            ranks=ranks_of(newest_group(attempt)) if attempt is not None else (),
        )

    def json(self) -> str:
        """Return one line, which `parsed` finds."""
        return as_json(self)
