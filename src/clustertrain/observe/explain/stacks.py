"""The stacks of all ranks of a running attempt: requested now, and grouped, the outlier first."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from clustertrain.errors import JobError
from clustertrain.node import variables
from clustertrain.node.waiting import wait_until
from clustertrain.observe.explain.evidence import StartEvidence
from clustertrain.observe.status import claimed_attempt
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import is_of_script
from clustertrain.run_files.records.requests import StacksRequest

_WAIT_S = 10.0
_TRAINS = ("train_loop_per_worker", "make_process_group", "stage_data")  # a function of the thread to show
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+) in (.+)$', re.MULTILINE)


@dataclass(frozen=True)
class RanksAtPlace:
    """Ranks that are at the same place.

    Attributes:
        ranks: their numbers.
        frames: the innermost first; empty without an answer.
        note: its process.
    """

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    note: str = ""

    def lines(self) -> Iterator[str]:
        yield f"{ranks_text(self.ranks)}{self.note}"
        yield from (f"    {frame}" for frame in self.frames)


def stacks_lines(run: RunDir) -> Iterator[str]:
    """Ask for the stacks of a run's ranks; yields the lines of each group, and where all threads are."""
    start = StartEvidence.newest(claimed_attempt(run, None))
    for group in stacks_now(start):
        yield from group.lines()
    if start.restart is not None and (request := start.restart.stacks_request.read()) is not None:
        yield f"all threads: {run.store.uri(start.restart.stacks_answers_key(request.id))}"


def stacks_now(start: StartEvidence, wait_s: float = _WAIT_S) -> tuple[RanksAtPlace, ...]:
    """Ask all ranks of a start of the workers for their stacks, and wait some seconds for the answers.

    Raises:
        JobError: no workers run, or they run scripts.
    """
    attempt, restart, uri = start.attempt, start.restart, start.attempt.run.uri
    if restart is None or not start.pids or not start.is_running:
        raise JobError(
            f"No workers of {uri} are running, so there are no stacks.\n"
            f"`{command_on(uri, 'status')}` shows its state."
        )
    if is_of_script(attempt):
        raise JobError(f"The ranks of {uri} run scripts, which are processes of their own.\n{of_script(uri)}")
    request = StacksRequest(secrets.token_hex(4))
    restart.stacks_request.write(request)
    store, key = attempt.run.store, restart.stacks_answers_key(request.id)
    wait_s += restart.look_for_stacks_every_s(len(start.pids))
    wait_until(lambda: len(store.list(key)) >= len(start.pids), wait_s, poll_s=0.2)
    answers = {int(name): store.read_or_none(f"{key}/{name}") or b"" for name in store.list(key)}
    return grouped(start, {rank: text.decode() for rank, text in answers.items()})


def of_script(uri: str) -> str:
    """Return how to see the stacks of a script."""
    shows = f"{command_on(uri, 'exec')} --rank K -- sh -c 'py-spy dump -s --pid ${variables.PID}'"
    return f"`{shows}` shows where the script of a rank is, if py-spy is installed there."


def grouped(start: StartEvidence, stacks: Mapping[int, str]) -> tuple[RanksAtPlace, ...]:
    """Group the ranks by place.

    First come the ranks that have not answered, then the smallest group; of equal groups first the one that
    does not wait in a collective.
    """
    places: dict[tuple[str, ...], list[int]] = {}
    for rank, text in sorted(stacks.items()):
        places.setdefault(frames_of(text), []).append(rank)
    groups = [RanksAtPlace(tuple(ranks), frames) for frames, ranks in places.items()]
    groups.sort(key=lambda group: (len(group.ranks), "distributed/" in "".join(group.frames[:1])))
    why = " did not answer: code may hold the interpreter's lock (pid {} on {})"
    silent = [rank for rank in sorted(start.pids) if rank not in stacks]
    return (*(RanksAtPlace((r,), (), why.format(start.pids[r], start.hosts[r])) for r in silent), *groups)


def frames_of(text: str) -> tuple[str, ...]:
    """Return the frames of the thread that trains, up to the function that began it, the innermost first.

    Without such a thread they are the frames of the main thread, which is the last one.
    """
    threads = [_FRAME.findall(thread) for thread in text.split("\n\n")]
    frames = next((each for each in threads if any(name in _TRAINS for *_, name in each)), threads[-1])
    own = takewhile(lambda frame: frame[2] not in _TRAINS, frames)
    return tuple(f"{'/'.join(path.split('/')[-2:])}:{line} in {name}" for path, line, name in own)


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Return the text of ranks: `ranks 0, 2-4` of (0, 2, 3, 4)."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][-1] == rank - 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    names = ", ".join("-".join(map(str, span)) for span in spans)
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"
