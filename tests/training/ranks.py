"""Real processes in real gloo groups, kept from test to test: importing torch costs more than most tests."""

import multiprocessing
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from clustertrain.training.ranks.distributed import RankInfo

ALONE = RankInfo(0, 0, 1, torch.device("cpu"))
_ANSWER_S = 120
PRELOADED = ["torch", "clustertrain.training.loop"]


class RankFailed(Exception):
    """A rank raised what cannot travel; its traceback."""


class Ranks:
    """`world_size` processes in one process group; `call` runs a module's function on all of them."""

    def __init__(self, world_size: int, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        store = str(folder / f"store-{world_size}")
        self._pipes, self._processes = [], []
        for rank in range(world_size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world_size, store, there))  # daemons may not
            process.start()  # have children, and loader processes are theirs
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def call(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What `function(place, *args)` returned, or raised, on each rank."""
        for pipe in self._pipes:
            pipe.send((function, args))
        return [
            pipe.recv() if pipe.poll(_ANSWER_S) else TimeoutError(f"rank {r}")
            for r, pipe in enumerate(self._pipes)
        ]

    def results(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What `function(place, *args)` returned on each rank; raises the first exception."""
        answers = self.call(function, *args)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()


def _serve(rank: int, world_size: int, store: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    if world_size > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=60),
        )
    rank_info = RankInfo(rank, rank, world_size, torch.device("cpu"))
    while (request := pipe.recv()) is not None:
        function, args = request
        try:
            answer = function(rank_info, *args)
        except Exception as error:  # noqa: BLE001  it is the answer
            error.add_note("".join(traceback.format_exception(error)))
            answer = error
        try:
            pipe.send(answer)
        except Exception:  # noqa: BLE001  an answer that does not pickle
            pipe.send(RankFailed(repr(answer)))
    if world_size > 1:
        dist.destroy_process_group()
