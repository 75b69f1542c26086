"""The process of a rank without Ray: it calls the functions that the driver sends, and answers.

The process is a fork of the fork server. Its main thread is for the calls, as in a worker of Ray: a training
has a thread of its own, so that the driver can ask whether the process lives while it runs.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from clustertrain.worker.place import Place
from clustertrain.worker.restart_plan import RestartPlan
from clustertrain.worker.setup import set_up_process, worker_state
from clustertrain.worker.train import train_loop_per_worker


def main(place: Mapping[str, Any], aside: int) -> None:
    """Answer calls until the driver closes the channel, which is the standard input of this process.

    Then the process ends.

    Args:
        place: the fields of a Place, as JSON has them.
        aside: the descriptor of the channel for the calls of a training.
    """
    worker_state.place = Place(**{**place, "gpus": tuple(place["gpus"])})
    channel = Connection(os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_answer, args=(Connection(aside),), name="training", daemon=True).start()
    channel.send(os.getpid())
    _answer(channel)


def _answer(channel: Connection) -> None:
    """Call the functions that arrive, and send what each returns or raises."""
    while True:
        try:
            function, args = channel.recv()
        except (EOFError, ConnectionError):  # the driver has ended
            os._exit(0)
        result, error = None, None
        try:
            result = function(*args)
        except BaseException as raised:  # noqa: BLE001  the driver gets it
            error = raised
        try:
            message = pickle.dumps((result, error))
            pickle.loads(message)
        except Exception:  # noqa: BLE001  of the user's error: it cannot be sent as it is
            message = pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
        channel.send_bytes(message)


def set_up(plan: RestartPlan) -> None:
    """Set this rank up: the first step of a start."""
    set_up_process(plan, worker_state.place)


def train() -> None:
    """Train in this thread."""
    place = worker_state.place
    if place.gpus and not worker_state.plan.job.is_script:  # whose parent must not touch CUDA
        import torch

        torch.cuda.set_device(place.device)  # of this thread
    train_loop_per_worker()
