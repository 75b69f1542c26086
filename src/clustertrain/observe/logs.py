"""The output of `clustertrain logs`: the events of an attempt, or the log of a rank, a node or the driver."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from clustertrain.errors import JobError
from clustertrain.node.units import moment_text
from clustertrain.node.waiting import wait_until
from clustertrain.observe.as_json import as_json, json_line
from clustertrain.observe.event_lines import line_of
from clustertrain.observe.screen import UNFINISHED_PERIOD_S
from clustertrain.observe.status import Status, StatusOf, claimed_attempt, is_scheduled, never_started
from clustertrain.observe.terminal_text import TerminalText
from clustertrain.run_files.claims import who_runs
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.folder.stream_names import rank_of_log
from clustertrain.run_files.streams.events import Record
from clustertrain.run_files.streams.history import AttemptFollower, host_of, newest_group
from clustertrain.run_files.streams.rank_log import separated
from clustertrain.run_files.streams.streams import Tail, stream_names

_POLL_S = 0.5
_POLL_S_ON_S3 = 2.0
QUEUE_POLL_S = 10.0  # every query loads the scheduler
_WHOLE_LINES = 1 << 30


Lives = Callable[[Attempt], bool]
"""Whether an attempt may write more lines, which are followed."""


@dataclass(frozen=True)
class LogSelection:
    """The selected lines: by default the events.

    `rank` and `node` together select that rank's log on that node.
    """

    rank: int | None = None
    node: str | None = None
    driver: bool = False
    attempt: int | None = None
    as_json: bool = False


def log_lines(run: RunDir, selection: LogSelection, status_of: StatusOf, *, follow: bool) -> Iterator[str]:
    """Yield the lines as `_log_lines`; `as_json` makes an object of each line.

    The object is the record of an event or of metrics, or {"line": …} for everything else.
    """
    for line in _log_lines(run, selection, status_of, follow=follow):
        if isinstance(line, str):
            yield json_line(line) if selection.as_json else line
        else:
            yield as_json(line)


def _log_lines(
    run: RunDir, selection: LogSelection, status_of: StatusOf, *, follow: bool
) -> Iterator[str | Record]:
    """Yield the lines, oldest first; for a failed run the cause comes first.

    With `follow` it ends when no process runs the attempt and, unless an attempt was selected, no scheduler
    will start another one.

    Raises:
        JobError: there is no such attempt or log.
    """
    lives = partial(_lives, status_of, follow=follow)
    if selection.attempt is not None:
        yield from _lines(claimed_attempt(run, selection.attempt), selection, None, lives)
        return
    shown, printed = 0, ""
    while True:
        status = status_of(run) if is_scheduled(run) else None
        attempt = run.newest_attempt()
        if attempt is None and status is None:
            raise never_started(run)
        if attempt is not None and attempt.n > shown:
            yield from _lines(attempt, selection, status, lives)
            shown = attempt.n
            printed = _state_line(status) if status is not None and status.state == "lost" else ""
            continue
        if status is None:
            return
        is_shown = status.standing.of_result and status.standing.over
        if status.runner is None and _state_line(status) != printed and not is_shown:
            printed = _state_line(status)
            yield printed
        if status.standing.over or not follow:
            return
        wait_until(partial(run.attempt_after, shown), QUEUE_POLL_S, _poll_s(run))


def _state_line(status: Status) -> str:
    return status.standing.line + (f" ({status.note})" if status.note else "")


def _lines(
    attempt: Attempt, selection: LogSelection, status: Status | None, lives: Lives
) -> Iterator[str | Record]:
    if selection.driver:
        yield from _printed_lines(attempt, attempt.driver_log_key, lives)
    elif selection.rank is not None:
        yield from _printed_lines(attempt, _rank_log(attempt, selection.rank, selection.node, lives), lives)
    elif selection.node is not None:
        yield from _node_lines(attempt, selection.node, lives)
    else:
        cause = _why_it_failed(attempt, status)
        if cause is not None:
            yield cause
        records = _records(attempt, lives)
        yield from records if selection.as_json else filter(None, map(_event_line, records))
        ended = _why_it_failed(attempt, None)
        if cause is None and ended is not None:
            yield ended


def _why_it_failed(attempt: Attempt, status: Status | None) -> str | None:
    """Return the cause of a failed attempt; for an attempt without a result, the state in the scheduler."""
    result = attempt.result.read()
    if result is not None:
        return f"failed ({result.cause}): {result.text}" if result.state == "failed" else None
    if status is not None and status.state == "lost":
        return _state_line(status)
    return None


# ---------------------------------------------------------------------------------------------- which log


def _rank_log(attempt: Attempt, rank: int, node: str | None, lives: Lives) -> str:
    """Wait for a rank's log as long as the attempt may write one, and return its key.

    If the rank moved between hosts, it is the log on the host of the newest restart.
    """
    logs: list[tuple[str, int]] = []
    for _ in _looks(attempt, lives):
        logs = [
            (host, of)
            for host in _hosts(attempt)
            for name in stream_names(attempt.run, attempt.node_logs_key(host))
            if (of := rank_of_log(name)) is not None and node in (None, host)
        ]
        found = [host for host, of in logs if of == rank]
        if found:
            host = host_of(newest_group(attempt), rank) if len(found) > 1 else found[0]
            return attempt.rank_log_key(host if host in found else found[-1], rank)
    where = f" on {node}" if node else ""
    raise JobError(
        f"Attempt {attempt.n} of {attempt.run.uri} has no log of rank {rank}{where}.\n"
        f"There are: {sorted({of for _, of in logs}) or 'none yet'}."
    )


def _hosts(attempt: Attempt) -> list[str]:
    """Return the nodes with logs; beside their folders are the logs of the whole run."""
    folder = attempt.logs_key
    names = set(attempt.run.store.list(folder)) | set(stream_names(attempt.run, folder))
    return sorted(name for name in names if not re.search(r"\.log(\.d)?$", name))


# ---------------------------------------------------------------------------------------------- its lines


def _records(attempt: Attempt, lives: Lives) -> Iterator[Record]:
    follower, is_first = AttemptFollower(attempt), True
    for is_last in _looks(attempt, lives):
        yield from follower.new(of_all=is_first or is_last)
        is_first = False


def _event_line(record: Record) -> str | None:
    text = line_of(record)
    return None if text is None else f"{moment_text(record['time'])}  {text}"


def _lives(status_of: StatusOf, attempt: Attempt, *, follow: bool) -> bool:
    """Return whether an attempt may write more lines.

    The answer comes from its heartbeat; before the first heartbeat, or if one is late, from its scheduler.
    """
    if not follow or who_runs(attempt) is not None:
        return follow
    if attempt.result.exists() or not is_scheduled(attempt.run):
        return False
    status = status_of(attempt.run)
    return status.runner is not None and status.attempt is not None and status.attempt.n == attempt.n


def _looks(attempt: Attempt, lives: Lives) -> Iterator[bool]:
    """Yield for each look at the streams of an attempt whether it is the last one, and pause in between.

    The last look begins after the end of the attempt and so misses nothing.
    """
    while lives(attempt):
        yield False
        time.sleep(_poll_s(attempt.run))
    yield True


def _poll_s(run: RunDir) -> float:
    return _POLL_S_ON_S3 if run.is_spooled else _POLL_S


def _printed_lines(attempt: Attempt, key: str, lives: Lives) -> Iterator[str]:
    """Yield what a rank or the driver printed: a progress bar is one line, in its last state.

    While the process runs, the state of a bar is a line from time to time.
    """
    tail, printed = Tail(attempt.run, key), TerminalText(_WHOLE_LINES)
    found, shown_at = False, time.monotonic()
    shown: list[str] = []
    for is_last in _looks(attempt, lives):
        for data in tail.new():
            found = True
            yield from separated(printed.feed(data))
        if not is_last and time.monotonic() - shown_at >= UNFINISHED_PERIOD_S:
            shown_at = time.monotonic()
            if shown != printed.open:
                shown = printed.open
                yield from shown
    yield from separated(printed.open)
    if not found:
        uri = attempt.run.store.uri(key)
        raise JobError(f"{uri} is empty.\nThe attempt may not have reached this point.")


def _node_lines(attempt: Attempt, node: str, lives: Lives) -> Iterator[str]:
    """Yield the lines of every log of a node, each with the name of its log.

    They come stream after stream, because they have no time to sort by.
    """
    tails: dict[str, Tail] = {}
    for _ in _looks(attempt, lives):
        for name in stream_names(attempt.run, attempt.node_logs_key(node)):
            if name.endswith(".log"):
                key = f"{attempt.node_logs_key(node)}/{name}"
                tail = tails.setdefault(name, Tail(attempt.run, key))
                yield from (_prefixed(name, line) for line in tail.new_lines())
    yield from (_prefixed(name, tail.unfinished) for name, tail in tails.items() if tail.unfinished)
    if node not in (hosts := _hosts(attempt)):
        raise JobError(
            f"Attempt {attempt.n} of {attempt.run.uri} has no log of node {node!r}.\n"
            f"There are: {', '.join(hosts) or 'none yet'}."
        )


def _prefixed(name: str, line: bytes) -> str:
    (shown,) = TerminalText(_WHOLE_LINES).feed(line + b"\n")
    return f"{name.removesuffix('.log')} | {shown}"
