"""The stacks of all ranks of a running attempt: requested now, and grouped, the outlier first."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from clustertrain.errors import JobError
from clustertrain.node import variables
from clustertrain.node.limits import process_place
from clustertrain.node.waiting import wait_until
from clustertrain.observe.explain.evidence import Start
from clustertrain.run_files.claims import who_runs
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.recorded_job import is_of_script
from clustertrain.run_files.records.requests import StacksRequest
from clustertrain.run_files.streams.history import events_of_attempt

_WAIT_S = 10.0
_TRAINS = ("train_loop_per_worker", "make_process_group", "stage_data")  # a function of the thread to show
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+) in (.+)$', re.MULTILINE)


@dataclass(frozen=True)
class Group:
    """Ranks that are at the same place.

    Ranks without frames have not answered, and `note` says why if it is known.
    """

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    note: str = ""

    def lines(self) -> Iterator[str]:
        silent = "" if self.frames else " did not answer: code may hold the interpreter's lock"
        yield f"{ranks_text(self.ranks)}{silent}{self.note}"
        yield from (f"    {frame}" for frame in self.frames)


def where_all_are(groups: tuple[Group, ...]) -> str:
    """Return where the ranks of the first group are, in one sentence."""
    first = groups[0]
    where = f"at {first.frames[0]}" if first.frames else f"did not answer{first.note}"
    return f"the run is running; {ranks_text(first.ranks)} {where}"


def stacks_now(start: Start) -> tuple[Group, ...]:
    """Ask all ranks of a start of the workers for their stacks, and wait some seconds for the answers.

    Raises:
        JobError: no workers run, or they run scripts.
    """
    attempt, restart = start.attempt, start.restart
    uri = attempt.run.uri
    if start.failure is not None or start.result is not None or who_runs(attempt) is None:
        raise _none_run(uri)
    if restart is None or not start.pids:
        shows = command_on(uri, "status")
        raise JobError(f"No workers of {uri} are running yet: it {waits_for(start)}.\n`{shows}` shows more.")
    if is_of_script(attempt):
        raise JobError(f"The ranks of {uri} run scripts, which are processes of their own.\n{of_script(uri)}")
    request = StacksRequest(secrets.token_hex(4))
    restart.stacks_request.write(request)
    store, key = attempt.run.store, restart.stacks_answers_key(request.id)
    wait_s = _WAIT_S + restart.look_for_stacks_every_s(len(start.pids))
    wait_until(lambda: len(store.list(key)) >= len(start.pids), wait_s, poll_s=0.2)
    answers = {int(name): store.read_or_none(f"{key}/{name}") for name in store.list(key)}
    if not answers and who_runs(attempt) is None:  # last: of a run elsewhere it is seen in some seconds
        raise _none_run(uri)
    return grouped(start, {rank: text.decode() for rank, text in answers.items() if text is not None})


def _none_run(uri: str) -> JobError:
    return JobError(
        f"No workers of {uri} are running, so there are no stacks.\n"
        f"`{command_on(uri, 'status')}` shows its state, `{command_on(uri, 'explain')}` why it ended."
    )


def of_script(uri: str) -> str:
    """Return how to see the stacks of a script."""
    shows = f"{command_on(uri, 'exec')} --rank K -- sh -c 'py-spy dump -s --pid ${variables.PID}'"
    return f"`{shows}` shows where the script of a rank is, if py-spy is installed there."


def waits_for(start: Start) -> str:
    """Return what an attempt that runs waits for as long as it has no workers."""
    stages = [each for each in events_of_attempt(start.attempt) if each["kind"] == "stage"]
    if stages and stages[-1]["phase"] != "ready":
        return f"fetches the data {stages[-1].get('name')}"
    return "waits for nodes or workers"


def grouped(start: Start, stacks: Mapping[int, str]) -> tuple[Group, ...]:
    """Group the ranks by place.

    First come the ranks that have not answered, then the smallest group; of equal groups first the one that
    does not wait in a collective.
    """
    places: dict[tuple[str, ...], list[int]] = {}
    for rank, text in sorted(stacks.items()):
        places.setdefault(frames_of(text), []).append(rank)
    order = sorted(
        places.items(),
        key=lambda item: (len(item[1]), any("distributed/" in frame for frame in item[0][:1]), item[1]),
    )
    silent = [Group((rank,), (), _state(start, rank)) for rank in sorted(start.pids) if rank not in stacks]
    return (*silent, *(Group(tuple(ranks), frames) for frames, ranks in order))


def frames_of(text: str) -> tuple[str, ...]:
    """Return the frames of the thread that trains, up to the function that began it, the innermost first.

    Without such a thread they are the frames of the main thread, which faulthandler writes last.
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


def _state(start: Start, rank: int) -> str:
    """Return the process of a rank, with what the kernel knows of it if it is on this machine."""
    pid, host = start.pids[rank], start.hosts[rank]
    return f" (pid {pid} on {host}{': ' + process_place(pid) if host == socket.gethostname() else ''})"
