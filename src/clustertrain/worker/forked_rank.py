"""The process of a rank without Ray: it calls the functions that the driver sends, and answers.

The process is a fork of the fork server. Its main thread is for the calls, as in a worker of Ray: a training
has a thread of its own, so that the driver can ask for the last step while it runs.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from clustertrain.worker.place import Place
from clustertrain.worker.restart_plan import RestartPlan
from clustertrain.worker.setup import set_up_process, worker_state
from clustertrain.worker.train import train_loop_per_worker


@dataclass(frozen=True)
class Call:
    """A call of a function. `aside`: in a thread of its own."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    aside: bool


def main(place: str) -> None:
    """Answer calls until the driver closes the channel, which is the standard input of this process; then the
    process ends.

    Args:
        place: a Place as JSON.
    """
    fields = json.loads(place)
    worker_state.place = Place(**{**fields, "gpus": tuple(fields["gpus"])})
    channel, lock = Connection(os.dup(0)), threading.Lock()
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    channel.send(os.getpid())
    while True:
        try:
            call = channel.recv()
        except (EOFError, ConnectionError):  # the driver has ended
            os._exit(0)
        if call.aside:
            threading.Thread(target=_answer, args=(call, channel, lock), name="training", daemon=True).start()
        else:
            _answer(call, channel, lock)


def _answer(call: Call, channel: Connection, lock: threading.Lock) -> None:
    result, error = None, None
    try:
        result = call.function(*call.args)
    except BaseException as raised:  # noqa: BLE001  the driver gets it
        error = raised
    try:
        message = pickle.dumps((call.number, result, error))
        pickle.loads(message)
    except Exception:  # noqa: BLE001  of the user's error: it cannot be sent as it is
        message = pickle.dumps((call.number, None, RuntimeError(f"{type(error).__name__}: {error}")))
    with lock:
        channel.send_bytes(message)


def set_up(plan: RestartPlan) -> None:
    """The first step of a start in this rank."""
    set_up_process(plan, worker_state.place)


def train() -> None:
    """Train in this thread."""
    place = worker_state.place
    if place.gpus and not worker_state.plan.job.is_script:  # whose parent must not touch CUDA
        import torch

        torch.cuda.set_device(place.device)  # of this thread
    train_loop_per_worker({})
