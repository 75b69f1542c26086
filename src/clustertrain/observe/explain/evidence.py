"""The texts that may show why a start of the workers failed.

They are its records and events, the end of the log of each rank on each node, and the logs of the driver and
of Ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from clustertrain.node.units import moment_text
from clustertrain.observe.explain.first_cause import EvidenceText
from clustertrain.observe.terminal_text import TerminalText
from clustertrain.run_files.claims import who_runs
from clustertrain.run_files.folder.run_dir import Attempt, Restart
from clustertrain.run_files.folder.stream_names import rank_of_log
from clustertrain.run_files.records.claim import Claim
from clustertrain.run_files.records.result import Failure, Result
from clustertrain.run_files.streams.history import events_of_attempt, ranks_of
from clustertrain.run_files.streams.rank_log import where_start_begins
from clustertrain.run_files.streams.streams import Tail, stream_names

_OF_RECORD, _OF_RUN, _OF_RANK, _OF_DRIVER = range(4)  # EvidenceText.order
_RANK_BYTES, _ALL_BYTES, _LEAST_BYTES = 1 << 16, 1 << 24, 1 << 13  # of the end of each log
_WITH_TEXT = ("warning", "watchdog")


@dataclass(frozen=True)
class StartEvidence:
    """One start of the workers, or an attempt that had none: what is known of its end."""

    attempt: Attempt
    restart: Restart | None
    failure: Failure | None
    result: Result | None
    hosts: dict[int, str]
    pids: dict[int, int]
    clocks_ahead_s: dict[int, float]

    @classmethod
    def newest(cls, attempt: Attempt) -> StartEvidence:
        """Return the newest start of the workers of an attempt."""
        restart = attempt.newest_restart()
        failure = restart.failure.read() if restart is not None else None
        plan = restart.plan.read() if restart is not None else None
        hosts, pids = dict(enumerate(plan.hosts if plan is not None else ())), dict[int, int]()
        groups = [event for event in events_of_attempt(attempt) if event["kind"] == "group_started"]
        clocks_ahead_s: dict[int, float] = {}
        of_start = [group for group in groups if restart and group.get("restart") == restart.number]
        for each_rank in chain.from_iterable(map(ranks_of, of_start)):
            match each_rank:
                case {"rank": int(rank), "host": str(host), "pid": int(pid)}:
                    hosts[rank], pids[rank] = host, pid
                    clocks_ahead_s[rank] = each_rank.get("clock_ahead_s", 0.0)
        return cls(attempt, restart, failure, attempt.result.read(), hosts, pids, clocks_ahead_s)

    @property
    def is_running(self) -> bool:
        """Whether it has not failed, and its attempt runs."""
        return self.failure is None and self.result is None and who_runs(self.attempt) is not None

    def records(self) -> Iterator[EvidenceText]:
        """Yield the failure of the start, and the result of the attempt or its last signs."""
        if (failure := self.failure) is not None and self.restart is not None:
            name = self._name(self.restart.failure.key)
            yield EvidenceText(name, failure.text, failure.rank, failure.host, _OF_RECORD)
        if (result := self.result) is not None and (failure is None or failure.text not in result.text):
            text = f"{result.state} ({result.cause}): {result.text}"
            yield EvidenceText(self._name(self.attempt.result.key), text, order=_OF_RUN, time=result.ended_at)
        claim = self.attempt.claim.read()
        if claim is not None and self.failure is None and self.result is None:
            yield self._last_signs(claim)

    def _last_signs(self, claim: Claim) -> EvidenceText:
        """Return what is known of an attempt that left neither a failure nor a result."""
        beat, events = self.attempt.heartbeat.read(), events_of_attempt(self.attempt)
        last = beat or claim
        signs = [f"last {'heartbeat' if beat else 'sign: its claim,'} {moment_text(last.time)}"]
        signs += [f"last event {moment_text(each['time'])}: {each['kind']}" for each in events[-1:]]
        signs += [f"pid {last.pid} on {last.host.partition('/')[0]} is gone and left no result"]
        name = self._name(self.attempt.heartbeat.key)
        return EvidenceText(name, "; ".join(signs), order=_OF_RUN, time=last.time)

    def events(self) -> Iterator[EvidenceText]:
        """Yield the warnings since this start."""
        began = self.restart.claim.read() if self.restart is not None else None
        for event in events_of_attempt(self.attempt):
            if event["kind"] in _WITH_TEXT and (began is None or event["time"] >= began.time):
                name = f"event {event['kind']}"
                yield EvidenceText(name, event["text"], event.get("rank"), "", _OF_RANK, time=event["time"])

    def rank_log(self, rank: int) -> EvidenceText:
        """Read the end of a rank's log, as far as it is of this start."""
        number, most_bytes = self.restart.number if self.restart is not None else 0, self._most_bytes
        key = self.attempt.rank_log_key(self.hosts[rank], rank)
        text, first_line = _end_of(self.attempt, key, most_bytes)
        begins = where_start_begins(text, number)
        first_line += text.count("\n", 0, begins)
        host, ahead_s = self.hosts[rank], self.clocks_ahead_s.get(rank, 0.0)
        return EvidenceText(self._name(key), text[begins:], rank, host, _OF_RANK, first_line, ahead_s=ahead_s)

    def other_logs(self) -> Iterator[EvidenceText]:
        """Yield the ends of the driver's log and of Ray's log on each node."""
        keys = [self.attempt.driver_log_key]
        for host in sorted(set(self.hosts.values())):
            folder = self.attempt.node_logs_key(host)
            keys += [
                f"{folder}/{name}"
                for name in stream_names(self.attempt.run, folder)
                if rank_of_log(name) is None
            ]
        for key in keys:
            text, first_line = _end_of(self.attempt, key, self._most_bytes)
            yield EvidenceText(self._name(key), text, order=_OF_DRIVER, first_line=first_line)

    @property
    def _most_bytes(self) -> int:
        return max(_LEAST_BYTES, min(_RANK_BYTES, _ALL_BYTES // max(1, len(self.hosts))))

    def _name(self, key: str) -> str:
        return key.removeprefix(f"{self.attempt.key}/")


def _end_of(attempt: Attempt, key: str, most_bytes: int) -> tuple[str, int]:
    """Return the end of a log, and the number of its first line; empty if there is no such log.

    The end is without colors and the states that a progress bar has overwritten.
    """
    end, lines = b"", 0
    for block in Tail(attempt.run, key).new():
        lines += block.count(b"\n")
        end = (end + block)[-most_bytes:]
    printed = TerminalText(most_bytes)
    shown = [*printed.feed(end), *(printed.open or [""])]
    return "\n".join(shown), 2 + lines - len(shown)
