"""What `clustertrain logs` prints: the events of the newest attempt, or what a rank or the driver printed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from clustertrain.claims import who_runs
from clustertrain.errors import JobError
from clustertrain.observe.joined import AttemptFollower, events_of_attempt
from clustertrain.observe.progress import line_of
from clustertrain.observe.streams import Tail, stream_names
from clustertrain.run_dir import Attempt, RunDir

_POLL_S = 0.5
_POLL_S_ON_S3 = 2.0


def log_lines(run: RunDir, *, rank: int | None, driver: bool, follow: bool) -> Iterator[str]:
    """The lines, oldest first; with `follow` until nobody runs the attempt any more.

    Raises:
        JobError: there is no such attempt or log.
    """
    attempt = run.newest_attempt()
    if attempt is None:
        raise JobError(f"{run.uri} was never started.\nStart it with `clustertrain run JOBFILE`.")
    if driver:
        yield from _file_lines(attempt, f"{attempt.key}/logs/driver.log", follow)
    elif rank is not None:
        yield from _file_lines(attempt, _rank_log(attempt, rank), follow)
    else:
        yield from _event_lines(attempt, follow)


def _rank_log(attempt: Attempt, rank: int) -> str:
    """The key of a rank's log; where the rank moved from host to host, the newest restart says to which."""
    hosts = stream_names(attempt.run, f"{attempt.key}/logs")
    logs = [
        (host, name)
        for host in hosts
        for name in stream_names(attempt.run, f"{attempt.key}/logs/{host}")
        if re.fullmatch(r"rank-\d+\.log", name)
    ]
    found = [host for host, name in logs if name == f"rank-{rank}.log"]
    if not found:
        ranks = sorted({int(name.removeprefix("rank-").removesuffix(".log")) for _, name in logs})
        raise JobError(
            f"Attempt {attempt.n} of {attempt.run.uri} has no log of rank {rank}.\nThere are: {ranks}."
        )
    host = _newest_host(attempt, rank) if len(found) > 1 else found[0]
    return f"{attempt.key}/logs/{host if host in found else found[-1]}/rank-{rank}.log"


def _newest_host(attempt: Attempt, rank: int) -> str | None:
    started = [event for event in events_of_attempt(attempt) if event["kind"] == "group_started"]
    ranks = started[-1]["ranks"] if started else []
    return next((str(place["host"]) for place in ranks if place["rank"] == rank), None)


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
        _pause(attempt)


def _pause(attempt: Attempt) -> None:
    time.sleep(_POLL_S_ON_S3 if attempt.run.is_spooled else _POLL_S)


def _file_lines(attempt: Attempt, key: str, follow: bool) -> Iterator[str]:
    tail, found = Tail(attempt.run, key), False
    while True:
        going_on = follow and who_runs(attempt) is not None
        for line in tail.new_lines():
            found = True
            yield line.decode(errors="replace")
        if not going_on:
            break
        _pause(attempt)
    if tail.unfinished:
        yield tail.unfinished.decode(errors="replace")
    elif not found:
        raise JobError(f"{attempt.run.store.uri(key)} holds nothing.\nThe attempt may not have come so far.")
