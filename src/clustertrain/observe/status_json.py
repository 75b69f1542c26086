"""The output of `status --json`, and its parser: for machines that cannot access the run's storage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from clustertrain.observe.gpus import newest_group, ranks_of
from clustertrain.observe.status import NotStarted, Row, find_run, read_files, status_by_files
from clustertrain.observe.tables import status_rows


@dataclass(frozen=True)
class StoredStatus:
    """The status of a run by its files.

    Attributes:
        attempt: the newest one, or None, in which case nothing else is known.
        began_at: when that attempt was claimed, in seconds since 1970.
        over, of_result: as in standing.Standing.
        exit_code: None while the run has not ended.
        rows: the table that `status` prints there.
        ranks: rank, host, pid and GPUs of each worker that was started last, as in the event `group_started`.
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
    rows: tuple[Row, ...] = ()
    ranks: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def parsed(cls, printed: str) -> StoredStatus | None:
        """Parse the last line that is a StoredStatus, or return None. Libraries may print other
        lines."""
        for line in reversed(printed.splitlines()):
            if line.startswith('{"attempt":'):
                known = {each.name for each in fields(cls)}  # a later version may print more
                values = {key: value for key, value in json.loads(line).items() if key in known}
                rows = tuple((name, text) for name, text in values["rows"])
                return cls(**{**values, "rows": rows, "ranks": tuple(values.get("ranks", ()))})
        return None


def stored_status(target: str) -> str:
    """One line of JSON for the run that `target` names, also if it was never started.

    Raises:
        JobError: there is no such job file, or it is wrong.
    """
    try:
        status = status_by_files(read_files(find_run(target)))
    except NotStarted:
        return json.dumps(asdict(StoredStatus()))
    if status.attempt is None:
        return json.dumps(asdict(StoredStatus()))
    claim = status.attempt.claim.read()
    standing, group = status.standing, newest_group(status.attempt)
    stored = StoredStatus(
        attempt=status.attempt.n,
        began_at=claim.time if claim is not None else 0.0,
        state=standing.state,
        cause=standing.cause,
        text=status.result.text if status.result is not None else standing.text,
        over=standing.over,
        of_result=standing.of_result,
        exit_code=status.exit_code,
        step=status.step,
        rows=tuple(status_rows(status)),
        ranks=ranks_of(group),
    )
    return json.dumps(asdict(stored))
