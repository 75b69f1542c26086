"""The stacks of all ranks of a running attempt: requested now, and grouped, the outlier first."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from clustertrain.errors import JobError
from clustertrain.explain.evidence import Start
from clustertrain.node.limits import process_place
from clustertrain.run.claims import who_runs
from clustertrain.run.command_line import command_on
from clustertrain.run.records import RankStacks, StacksRequest
from clustertrain.run.streams.history import events_of_attempt
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


def where_all_are(groups: tuple[Group, ...]) -> str:
    """Where the ranks are, in one sentence."""
    first, *others = groups
    if not others and first.frames:
        return f"the run is running; all ranks are in {first.frames[0]}"
    verb = "is" if len(first.ranks) == 1 else "are"
    where = f"{verb} in {first.frames[0]}" if first.frames else f"did not answer{first.note}"
    elsewhere = sum(len(group.ranks) for group in others)
    return f"the run is running; {ranks_text(first.ranks)} {where}, and {elsewhere} elsewhere"


def stacks_now(start: Start) -> tuple[Group, ...]:
    """Ask all ranks of a start of the workers for their stacks, and wait some seconds for the answers.

    Raises:
        JobError: no workers run.
    """
    if start.restart is None or not start.pids or start.failure is not None or start.result is not None:
        uri = start.attempt.run.uri
        if start.failure is None and who_runs(start.attempt) is not None:
            state = command_on(uri, "status")
            raise JobError(
                f"No workers of {uri} are running yet: it {waits_for(start)}.\n`{state}` shows more."
            )
        raise _none_run(uri)
    restart, request = start.restart, StacksRequest(secrets.token_hex(4))
    restart.stacks_request.write(request)
    store, key = restart.attempt.run.store, restart.stacks_answers_key(request.id)
    waits_s = _WAIT_S + StacksRequest.look_every_s(len(start.pids))
    wait_s = _WAIT_S_ON_S3 if restart.attempt.run.is_spooled else waits_s
    wait_until(lambda: len(store.list(key)) >= len(start.pids), wait_s, poll_s=0.2)
    read = (restart.stacks_answer(request.id, rank).read() for rank in sorted(start.pids))
    answers = [answer for answer in read if answer is not None]
    if not answers and who_runs(start.attempt) is None:  # last: of a run elsewhere it is seen in some seconds
        raise _none_run(start.attempt.run.uri)
    return grouped(start, answers)


def _none_run(uri: str) -> JobError:
    return JobError(
        f"No workers of {uri} are running, so there are no stacks.\n"
        f"`{command_on(uri, 'status')}` shows its state, `{command_on(uri, 'explain')}` why it ended."
    )


def waits_for(start: Start) -> str:
    """What an attempt that runs waits for as long as it has no workers."""
    stages = [each for each in events_of_attempt(start.attempt) if each["kind"] == "stage"]
    if stages and stages[-1]["phase"] != "ready":
        return f"fetches the data {stages[-1].get('name')}"
    return "waits for nodes or workers"


def grouped(start: Start, answers: list[RankStacks]) -> tuple[Group, ...]:
    """Group the answers by place: first the ranks that have not answered, then the smallest group; of equal
    ones the one that does not wait in a collective."""
    by_frames: dict[tuple[str, ...], list[RankStacks]] = {}
    for answer in answers:
        by_frames.setdefault(answer.frames, []).append(answer)
    of_places = sorted(by_frames.items(), key=lambda item: (len(item[1]), _waits(item[0]), item[1][0].rank))
    answered = {answer.rank for answer in answers}
    silent = [Group((rank,), (), _state(start, rank)) for rank in sorted(start.pids) if rank not in answered]
    return (*silent, *(Group(tuple(a.rank for a in of_place), frames) for frames, of_place in of_places))


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
    return f" (pid {pid} on {host}{': ' + process_place(pid) if host == socket.gethostname() else ''})"
