"""The stacks of all ranks of a running attempt: requested now, and grouped, the outlier first."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.explain.evidence import Start
from clustertrain.node.limits import process_state
from clustertrain.run.command_line import command_on
from clustertrain.run.records import RankStacks, StacksRequest
from clustertrain.waiting import wait_until

_WAIT_S, _WAIT_S_ON_S3 = 10.0, 20.0
_SHOWN_FRAMES = 12


@dataclass(frozen=True)
class Group:
    """Ranks that are at the same place; without frames they have not answered, and `note` says why if it is
    known."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    note: str = ""

    def lines(self) -> Iterator[str]:
        silent = "" if self.frames else " did not answer: code may hold the interpreter's lock"
        yield f"{ranks_text(self.ranks)}{silent}{self.note}"
        yield from (f"    {frame}" for frame in self.frames[:_SHOWN_FRAMES])
        if len(self.frames) > _SHOWN_FRAMES:
            yield f"    … {len(self.frames) - _SHOWN_FRAMES} more"


@dataclass(frozen=True)
class Stacks:
    """Where all ranks are, the smallest group first.

    Attributes:
        groups: the ranks of each place with its frames, the innermost first; no frames: they did not answer.
        texts: the stacks of all threads of one rank of each group.
    """

    groups: tuple[Group, ...]
    texts: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """In one sentence."""
        first = self.groups[0]
        if len(self.groups) == 1 and first.frames:
            return f"the run is running; all ranks are in {first.frames[0]}"
        verb = "is" if len(first.ranks) == 1 else "are"
        where = f"{verb} in {first.frames[0]}" if first.frames else f"did not answer{first.note}"
        others = sum(len(group.ranks) for group in self.groups[1:])
        return f"the run is running; {ranks_text(first.ranks)} {where}, and {others} elsewhere"

    @property
    def advice(self) -> str:
        """How to tell a hang."""
        return "If it makes no step, look at the first group: the others wait for it. Ask again to compare."

    def lines(self, *, whole: bool = False) -> Iterator[str]:
        """The groups; `whole`: also the stacks of all threads of one rank of each."""
        for group in self.groups:
            yield from group.lines()
        if whole:
            for text in self.texts:
                yield from ("", *text.splitlines())


def stacks_now(start: Start) -> Stacks:
    """Ask all ranks of a start of the workers for their stacks, and wait some seconds for the answers.

    Raises:
        JobError: no workers run.
    """
    if start.restart is None or not start.pids or start.failure is not None or start.result is not None:
        uri = start.attempt.run.uri
        raise JobError(
            f"No workers of {uri} are running, so there are no stacks.\n"
            f"`{command_on(uri, 'status')}` shows its state, `{command_on(uri, 'explain')}` why it ended."
        )
    restart, request = start.restart, StacksRequest(secrets.token_hex(4))
    restart.stacks_request.write(request)
    store, key = restart.attempt.run.store, restart.stacks_answers_key(request.id)
    wait_s = _WAIT_S_ON_S3 if restart.attempt.run.is_spooled else _WAIT_S
    wait_until(lambda: len(store.list(key)) >= len(start.pids), wait_s, poll_s=0.2)
    read = (restart.stacks_answer(request.id, rank).read() for rank in sorted(start.pids))
    return grouped(start, [answer for answer in read if answer is not None])


def grouped(start: Start, answers: list[RankStacks]) -> Stacks:
    """Group the answers by place: first the ranks that have not answered, then the smallest group; of equal
    ones the one that does not wait in a collective."""
    by_frames: dict[tuple[str, ...], list[RankStacks]] = {}
    for answer in answers:
        by_frames.setdefault(answer.frames, []).append(answer)
    of_places = sorted(by_frames.items(), key=lambda item: (len(item[1]), _waits(item[0]), item[1][0].rank))
    answered = {answer.rank for answer in answers}
    silent = [Group((rank,), (), _state(start, rank)) for rank in sorted(start.pids) if rank not in answered]
    groups = [Group(tuple(a.rank for a in of_place), frames) for frames, of_place in of_places]
    texts = tuple(f"rank {a.rank} (pid {a.pid} on {a.host}):\n{a.text}" for _, (a, *_) in of_places)
    return Stacks((*silent, *groups), texts)


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Of (0, 2, 3, 4): `ranks 0, 2-4`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][-1] == rank - 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    names = ", ".join("-".join(map(str, span)) for span in spans)
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def _waits(frames: tuple[str, ...]) -> bool:
    """Whether the innermost frame is in torch's collectives, which wait for the other ranks."""
    return bool(frames) and "distributed/" in frames[0]


def _state(start: Start, rank: int) -> str:
    """The process of a rank, with what the kernel knows of it if it is on this machine."""
    pid, host = start.pids[rank], start.hosts[rank]
    if host != socket.gethostname():
        return f" (pid {pid} on {host})"
    state = process_state(pid)
    waits = Path(f"/proc/{pid}/wchan")
    at = f", waits in {waits.read_text()}" if state is not None and waits.exists() else ""
    return f" (pid {pid} on {host}: {f'in state {state}{at}' if state else 'has ended'})"
