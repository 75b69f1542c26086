"""What `clustertrain logs` prints: the events of the newest attempt, or what a rank or the driver printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from clustertrain.claims import who_runs
from clustertrain.errors import JobError
from clustertrain.observe.joined import AttemptFollower
from clustertrain.observe.progress import line_of
from clustertrain.run_dir import Attempt, RunDir

_POLL_S = 0.5


def log_lines(run: RunDir, *, rank: int | None, driver: bool, follow: bool) -> Iterator[str]:
    """The lines, oldest first; with `follow` until nobody runs the attempt any more.

    Raises:
        JobError: there is no such attempt or log.
    """
    attempt = run.newest_attempt()
    if attempt is None:
        raise JobError(f"{run.path} was never started.\nStart it with `clustertrain run JOBFILE`.")
    if driver:
        yield from _file_lines(attempt, attempt.driver_log, follow)
    elif rank is not None:
        yield from _file_lines(attempt, _rank_log(attempt, rank), follow)
    else:
        yield from _event_lines(attempt, follow)


def _rank_log(attempt: Attempt, rank: int) -> Path:
    found = sorted(attempt.log_dir.glob(f"*/rank-{rank}.log"))
    if not found:
        ranks = sorted(int(p.stem.removeprefix("rank-")) for p in attempt.log_dir.glob("*/rank-*.log"))
        raise JobError(
            f"Attempt {attempt.n} of {attempt.run.path} has no log of rank {rank}.\nThere are: {ranks}."
        )
    return max(found, key=lambda path: path.stat().st_mtime)  # the rank moved hosts: the newest one


def _event_lines(attempt: Attempt, follow: bool) -> Iterator[str]:
    follower = AttemptFollower(attempt)
    while True:
        going_on = follow and who_runs(attempt) is not None
        for record in follower.new():
            text = line_of(record)
            if text is not None:
                yield f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(record['time']))}  {text}"
        if not going_on:
            return
        time.sleep(_POLL_S)


def _file_lines(attempt: Attempt, path: Path, follow: bool) -> Iterator[str]:
    if not path.exists():
        raise JobError(f"{path} does not exist.\nThe attempt may not have come so far.")
    with path.open(errors="replace") as file:
        while True:
            going_on = follow and who_runs(attempt) is not None
            yield from (line.rstrip("\n") for line in file)
            if not going_on:
                return
            time.sleep(_POLL_S)
