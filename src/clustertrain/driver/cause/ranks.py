"""The ranks of a start of the worker group: what they and their nodes answer, and the end of a rank's log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from clustertrain.driver.calls import RankDied, answer, answers, answers_by_rank
from clustertrain.node.gpus import Gpu, visible_gpus
from clustertrain.node.limits import Limits, process_state, read_limits
from clustertrain.node.processes import this_host
from clustertrain.run_files.folder.run_dir import Restart
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.rank_log import where_start_begins

_T = TypeVar("_T")
_LOG_TAIL_BYTES = 20_000
_STACKS_BYTES = 2 << 20  # of all threads, which follow the error that ended a process
_ANSWER_S = 5.0
_ALIVE_S, _ALIVE_EACH_S = 2.0, 0.001  # for all ranks to say that they live, and more for each of them
_STARTS_S = 20.0  # to start a Ray task on a busy node, and to receive its result


class Ranks:
    """The workers of one restart, and the limits of their nodes at its start."""

    def __init__(self, worker_group: Any, restart: Restart) -> None:
        self.workers = {w.distributed_context.world_rank: w for w in worker_group.get_workers()}
        self.restart, self.attempt = restart, restart.attempt
        self.began_s = time.monotonic()
        self.limits: dict[int, Limits] = {}
        self.gpus: dict[int, tuple[Gpu, ...]] = {}
        self._clocks_ahead_s: dict[int, float] = {}
        self.answer_s = 0.0

    def note_limits(self, answer_s: float) -> None:
        """Ask the workers for the limits of their nodes, for their GPUs and their clocks.

        Raises:
            NoAnswer: a worker has died, or has not answered within this time.
        """
        self.answer_s = answer_s

        def of_all(function: Callable[[], Any]) -> dict[int, Any]:
            found = answers([w.execute_async(function) for w in self.workers.values()], answer_s)
            return dict(zip(self.workers, found, strict=True))

        self.limits, self.gpus = of_all(read_limits), of_all(visible_gpus)
        asked = time.time()
        clocks = of_all(time.time)
        here = (asked + time.time()) / 2
        self._clocks_ahead_s = {rank: clock - here for rank, clock in clocks.items()}

    def as_event(self) -> dict[str, Any]:
        """Return the fields of the event `group_started`."""
        ranks = [
            {
                "rank": rank,
                "host": worker.metadata.hostname,
                "pid": worker.metadata.pid,
                "gpus": [asdict(gpu) for gpu in self.gpus[rank]],
                "clock_ahead_s": self._clocks_ahead_s[rank],
            }
            for rank, worker in self.workers.items()
        ]
        return {
            "restart": self.restart.number,
            "world_size": len(ranks),
            "clock_ahead_s": self._clocks_ahead_s[0],
            "ranks": ranks,
        }

    def stopped(self) -> list[int]:
        """Return the ranks on this node that a signal has stopped."""
        here = [rank for rank, limits in self.limits.items() if limits.host == this_host()]
        return [r for r in here if (process_state(self.workers[r].metadata.pid) or "").startswith("T")]

    def dead(self) -> dict[int, RankDied]:
        """Return the error for each dead rank, and write a warning for each silent rank.

        A poll can return a survivor's exception before the death that caused it, so every rank is asked.
        """
        answered = self.all_answers()
        for rank in self.workers.keys() - answered.keys():  # it cannot write its stacks; the other ranks did
            EventLog(self.attempt.events).write("warning", text=self.silence(rank))
        return {rank: error for rank, error in answered.items() if isinstance(error, RankDied)}

    def all_answers(self) -> dict[int, Any]:
        """Return what the ranks answer, or their errors, without the silent ranks. All are asked at once."""
        calls = {rank: w.execute_async(os.getpid) for rank, w in self.workers.items()}
        return answers_by_rank(calls, _ALIVE_S + _ALIVE_EACH_S * len(calls))

    def silence(self, rank: int) -> str:
        """Return a line about a rank that does not answer, with the state of its process."""
        pid = self.workers[rank].metadata.pid
        state = self.call_on_node(rank, process_state, pid, is_silent=True)
        known = f"its process is in state {state}" if state else "the state of its process is unknown"
        return f"{self.who(rank)} does not answer; {known}"

    def call_on_node(
        self, rank: int, function: Callable[..., _T], *args: Any, is_silent: bool = False
    ) -> _T | None:
        """Return the result of a function on the node of a rank.

        The function runs in this process if this process is on that node; otherwise in the rank, in another
        rank there, or in a new Ray task. The result is None if none answers, or if the node is unknown.

        Args:
            is_silent: the rank was asked already, and does not answer.
        """
        if rank not in self.limits:
            return None
        host = self.limits[rank].host
        if host == this_host():
            return function(*args)
        neighbours = [r for r, limits in self.limits.items() if limits.host == host and r != rank]
        for target in neighbours if is_silent else (rank, *neighbours):
            with suppress(Exception):  # dead, stopped, or without a free file descriptor
                found: _T = answer(self.workers[target].execute_async(function, *args), _ANSWER_S)
                return found
        return self._call_in_new_process(rank, function, *args)

    def _call_in_new_process(self, rank: int, function: Callable[..., _T], *args: Any) -> _T | None:
        """Run the function in a new Ray task: the rank was the only worker of its node, as in a pod."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(self.workers[rank].metadata.node_id, soft=False)
        target = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        try:
            found: _T = ray.get(target.remote(*args), timeout=_STARTS_S)
        except ray.exceptions.RayError:  # the node is gone as well
            return None
        return found

    def who(self, rank: int) -> str:
        """Return a rank with its process and its node, as a message names it."""
        where = self.workers[rank].metadata
        return f"rank {rank} (pid {where.pid} on {where.hostname})"

    def log_tail(self, rank: int) -> str:
        """Return the end of the rank's log since this start of the group."""
        text = _tail(self.attempt.rank_log(self.workers[rank].metadata.hostname, rank))
        return text[where_start_begins(text, self.restart.number) :]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _STACKS_BYTES))
            text = file.read().decode(errors="replace")
            error = text.rfind("\nFatal Python error: ")  # Python then writes the stacks
            end = error if error >= 0 else len(text)
            return text[max(0, end - _LOG_TAIL_BYTES) :]
    except FileNotFoundError:
        return ""
