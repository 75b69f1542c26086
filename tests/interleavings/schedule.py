"""Runs a few processes of a protocol under every interleaving of their operations.

A process is a thread that runs the real code. Before each operation on what the processes share it calls
`Schedule.point` and waits for its turn, so exactly one of them runs at any time. At each point a chooser
decides who goes on, who crashes (it never goes on again), and whose answer is lost: the operation is done,
and its process gets an error of the network.

`explore` visits all choices, depth first, by running the processes again from their start for each one. Three
things keep their number small, and leave out nothing that a process could notice:

- Two orders of operations that touch different things lead to the same state, which is visited once: a state
  is the history of each process, and an event of a history is hashed with the events on which it depends (the
  last write of what it reads, and for a write also the reads since then).
- An operation on what no other process touches happens at once. What each one touches is learned: all is
  explored again until nothing new is learned.
- A crash is a process that no longer gets its turn. It is a choice only before a write, and only where
  another process looks whether that one lives, or when the others have ended.
"""

import os
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

GO, CRASH, LOST = "goes on", "crashes", "goes on, its answer is lost"
NIGHTLY = "nightly" in os.environ.get("CLUSTERTRAIN_REQUIRE", "")
_FIRST_RUNS = 40
_FAULT_ONE_IN = 40
_MASK = (1 << 64) - 1

Touches = list[tuple[str, bool]]
"""What an operation reads (False) and writes (True)."""
Choice = tuple[int, str]


class Crashed(BaseException):
    """Ends the thread of a crashed process: each of its operations raises this before it does anything."""


@dataclass(eq=False)
class Process:
    """`host`: processes of one host see whether another one lives."""

    index: int
    body: Callable[[], object]
    host: str = ""
    clock_s: float = 1000.0
    made: int = 0
    history: int = 0
    ended: bool = False
    crashed: bool = False
    outcome: object = None
    fate: str = GO
    operation: tuple[str, Callable[[], Touches], bool] = ("starts", list, False)
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def pid(self) -> int:
        return 100 + self.index

    def name(self) -> uuid.UUID:
        """The next unique name, the same in each run of this process."""
        self.made += 1
        return uuid.UUID(int=((self.index + 1) << 120) | (self.made << 96))


class Schedule:
    """One run of the processes. `choose` gets the choices and returns one; None ends the run early."""

    current: "Schedule | None" = None
    _of_thread = threading.local()

    def __init__(
        self,
        processes: list[Process],
        choose: "Chooser",
        crashes: int,
        losses: int,
        known: list[dict[str, bool]] | None = None,
    ) -> None:
        """`known`: what each process may touch, and whether it writes it; None if that is unknown."""
        self.processes, self._choose, self._known = processes, choose, known
        self.touched: list[dict[str, bool]] = [{} for _ in processes]
        self._crashes, self._losses = crashes, losses
        self._writes: dict[str, int] = {}
        self._reads: dict[str, int] = {}
        self._over, self._done = False, threading.Semaphore(0)
        self.is_complete = False
        self._error: BaseException | None = None
        self.trace: list[str] = []
        self._last = 0

    @classmethod
    def process(cls) -> Process | None:
        """The process that calls; None outside of all of them."""
        return getattr(cls._of_thread, "process", None)

    @classmethod
    @contextmanager
    def unseen(cls) -> Iterator[None]:
        """What the calling process does in this block is no operation."""
        cls._of_thread.process, process = None, cls._of_thread.process
        try:
            yield
        finally:
            cls._of_thread.process = process

    def run(self) -> None:
        threads = [threading.Thread(target=self._live, args=(each,), daemon=True) for each in self.processes]
        Schedule.current = self
        for thread in threads:
            thread.start()
        self._pass_on(None)
        self._done.acquire()
        self._over = True
        for process in self.processes:
            process.turn.release()
        for thread in threads:
            thread.join()
        Schedule.current = None
        if self._error is not None:
            raise self._error

    def _live(self, process: Process) -> None:
        Schedule._of_thread.process = process
        process.turn.acquire()
        try:
            if self._over or process.crashed:
                return
            process.outcome = process.body()
        except Crashed:
            return
        except Exception as error:  # noqa: BLE001  it is the outcome, which the scenario judges
            process.outcome = error
        process.ended = True
        self._pass_on(process)

    def point(self, label: str, touches: Callable[[], Touches], *, may_lose: bool = False) -> str:
        """Wait until the operation of this process is chosen. Returns its fate: GO or LOST."""
        process = self.process()
        if process is None:
            return GO
        if self._over or process.crashed:
            raise Crashed
        process.operation = (label, touches, may_lose)
        self._pass_on(process)
        if self._over or process.crashed:
            raise Crashed
        return process.fate

    def _pass_on(self, process: Process | None) -> None:
        """Give the turn to the process that is chosen, and wait for the own one."""
        chosen = self._next()
        if chosen is None:
            self._done.release()
        elif chosen is not process:
            chosen.turn.release()
        if process is not None and chosen is not process and not process.ended:
            process.turn.acquire()

    def _next(self) -> Process | None:
        while True:
            choices = self._choices()
            if not any(fate == GO for _, fate in choices):
                self.is_complete = True
                return None
            try:
                choice = self._choose(self, choices)
            except BaseException as error:  # noqa: BLE001  `run` raises it, outside of the process
                self._error = error
                return None
            if choice is None:
                return None
            process, fate = self.processes[choice[0]], choice[1]
            process.history = self._event(choice, remember=True)
            label = process.operation[0]
            self.trace.append(
                f"{'ABC'[choice[0]]} {fate}: {label}" if fate != GO else f"{'ABC'[choice[0]]} {label}"
            )
            if fate == CRASH:
                process.crashed = True
                self._crashes -= 1
                continue
            self._losses -= fate == LOST
            process.fate, self._last = fate, choice[0]
            return process

    def _choices(self) -> list[Choice]:
        """All choices; first that the same process goes on."""
        able = [p for p in self.processes if not p.ended and not p.crashed]
        able.sort(key=lambda p: p.index != self._last)
        going = [p for p in able if not self._is_shared(p)][:1] or able
        choices = [(p.index, GO) for p in going]
        if self._losses:
            choices += [(p.index, LOST) for p in going if p.operation[2]]
        if self._crashes:
            looked_at = {
                what for p in able if p.operation[0].startswith("looks") for what, _ in p.operation[1]()
            }
            dying = [
                p for p in able if self._known is None or len(able) == 1 or f"life of {p.pid}" in looked_at
            ]
            choices += [(p.index, CRASH) for p in dying if any(writes for _, writes in p.operation[1]())]
        return choices

    def _is_shared(self, process: Process) -> bool:
        """Whether another process may touch what the next operation touches, and one of them writes it."""
        if self._known is None or process.operation[0].startswith("looks"):
            return True
        others = [
            self._known[p.index] for p in self.processes if p is not process and not p.ended and not p.crashed
        ]
        touches = process.operation[1]()
        return any(what in of and (writes or of[what]) for of in others for what, writes in touches)

    def state_after(self, choice: Choice) -> int:
        """The state to which a choice leads."""
        event = self._event(choice, remember=False)
        return hash(tuple(event if p.index == choice[0] else p.history for p in self.processes))

    def _event(self, choice: Choice, *, remember: bool) -> int:
        process, fate = self.processes[choice[0]], choice[1]
        label, touches, _ = process.operation
        touched = touches() if fate != CRASH else [(f"life of {process.pid}", True)]
        depends = [
            (what, self._writes.get(what, 0), self._reads.get(what, 0) if writes else -1)
            for what, writes in touched
        ]
        event = hash((process.history, label, fate, tuple(depends)))
        if remember:
            of_process = self.touched[choice[0]]
            for what, writes in touched:
                of_process[what] = of_process.get(what, False) or writes
                if writes:
                    self._writes[what], self._reads[what] = event, 0
                else:
                    self._reads[what] = (self._reads.get(what, 0) + event) & _MASK
        return event


Chooser = Callable[["Schedule", list[Choice]], Choice | None]
Scenario = Callable[[], tuple[list[Process], Callable[[Schedule], None]]]
"""Makes a new world; returns its processes, and the check of a run that is over."""


Touched = list[dict[str, bool]]
"""What each process has touched, and whether it wrote it."""


def explore(scenario: Scenario, *, crashes: int = 1, losses: int = 0) -> None:
    """Run a scenario under all choices; prints how many runs that took."""
    touched: Touched = [{} for _ in scenario()[0]]
    for seed in range(_FIRST_RUNS):
        _learn(touched, _run(scenario, _at_random(random.Random(seed)), (crashes, losses)))
    known, runs = None, 0
    while known != touched:
        known = [dict(of) for of in touched]
        for schedule in _under_all_choices(scenario, known, (crashes, losses)):
            _learn(touched, schedule)
            runs += 1
    print(f"{runs} runs under all choices")


def _learn(touched: Touched, schedule: Schedule) -> None:
    for of_all, of in zip(touched, schedule.touched, strict=True):
        for what, writes in of.items():
            of_all[what] = of_all.get(what, False) or writes


def _under_all_choices(scenario: Scenario, known: Touched, faults: tuple[int, int]) -> Iterator[Schedule]:
    seen: set[int] = set()
    todo: list[list[Choice]] = [[]]
    while todo:
        prefix = todo.pop()
        made: list[Choice] = []

        def choose(
            schedule: Schedule,
            choices: list[Choice],
            prefix: list[Choice] = prefix,
            made: list[Choice] = made,
        ) -> Choice | None:
            if len(made) < len(prefix):
                choice = prefix[len(made)]
                if choice not in choices:
                    raise AssertionError(f"{choice} is not possible: a process is not deterministic")
            else:
                new = [each for each in choices if not _add(seen, schedule.state_after(each))]
                if not new:
                    return None
                choice = new[0]
                todo.extend([*made, other] for other in reversed(new[1:]))
            made.append(choice)
            return choice

        yield _run(scenario, choose, faults, known)


def explore_at_random(scenario: Scenario, seeds: Iterable[int], *, crashes: int = 1, losses: int = 1) -> None:
    """Run a scenario once for each seed, under random choices; a failure prints its seed."""
    for seed in seeds:
        try:
            _run(scenario, _at_random(random.Random(seed)), (crashes, losses))
        except AssertionError as error:
            raise AssertionError(f"with seed {seed}: {error}") from error


def _at_random(rng: random.Random) -> Chooser:
    def choose(schedule: Schedule, choices: list[Choice]) -> Choice:
        faults = [choice for choice in choices if choice[1] != GO]
        if faults and rng.randrange(_FAULT_ONE_IN) == 0:
            return rng.choice(faults)
        going = [choice for choice in choices if choice[1] == GO]
        return going[0] if rng.random() < rng.choice((0.3, 0.9)) else rng.choice(going)

    return choose


def _run(
    scenario: Scenario, choose: Chooser, faults: tuple[int, int], known: Touched | None = None
) -> Schedule:
    processes, check = scenario()
    schedule = Schedule(processes, choose, *faults, known)
    schedule.run()
    if schedule.is_complete:
        try:
            check(schedule)
        except AssertionError as error:
            lines = "\n  ".join(schedule.trace)
            raise AssertionError(f"{error}\nafter\n  {lines}") from error
    return schedule


def _add(seen: set[int], state: int) -> bool:
    """Whether the state was in the set already; it is afterwards."""
    before = len(seen)
    seen.add(state)
    return len(seen) == before


def outcomes(schedule: Schedule) -> Iterator[object]:
    """The outcomes of the processes that did not crash."""
    return (process.outcome for process in schedule.processes if not process.crashed)
