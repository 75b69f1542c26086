"""Starts the fork server of a node."""

from __future__ import annotations

import ctypes
import math
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from clustertrain.node import variables
from clustertrain.supervise.private_folder import FORK_SERVER
from clustertrain.worker.fork import client

SETUP_WORKER = client.__file__
"""What Ray has to start for each worker process."""

_QUEUE = 128


def start_fork_server(folder: Path, cpus_per_worker: float) -> None:
    """Start the fork server; it ends with this process. Processes that this one starts from now on know it.

    Args:
        folder: a private folder with a short path, for the socket: who connects has code run.
    """
    with _listening(folder) as listens:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "clustertrain.driver.fork.server", str(listens.fileno())],
            stdin=subprocess.PIPE,  # its end is the end of this process
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[listens.fileno()],
            env={**_threads(cpus_per_worker), **os.environ},
            text=True,
            errors="replace",
        )
    _print_lines(server.stdout)


def fork_server_of_this_process(folder: Path, cpus_per_worker: float) -> None:
    """Start the fork server as a fork of this process, which has one thread.

    Each import is done once for both.
    """
    os.environ |= {**_threads(cpus_per_worker), **os.environ}
    with _listening(folder) as listens:
        from clustertrain.driver.fork.server import import_torch, serve

        import_torch()
        ends, is_open = os.pipe()  # is_open is closed at the end of this process
        printed, prints = os.pipe()
        if os.fork() == 0:
            for target, file in enumerate((ends, prints, prints)):
                os.dup2(file, target)
            os.close(is_open)
            os.close(printed)
            _exit_after(partial(serve, listens.fileno()))
        os.close(ends)
        os.close(prints)
    _print_lines(os.fdopen(printed, errors="replace"))


def _exit_after(run: Callable[[], object]) -> None:
    """Call `run`, and end this process as Python ends. sys.exit would unwind the frames of the driver."""
    code: object = 0
    try:
        run()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:  # noqa: BLE001  Python shows all
        traceback.print_exc()
        code = 1
    ctypes.pythonapi.Py_Exit(code if isinstance(code, int) else 1)


def _threads(cpus_per_worker: float) -> dict[str, str]:
    """Return the variable for the number of threads of OpenMP and numpy: the number that Ray would set.

    They read it when they are loaded.
    """
    return {"OMP_NUM_THREADS": str(max(1, math.floor(cpus_per_worker)))}


def _listening(folder: Path) -> socket.socket:
    """Open the socket of the fork server, and set the variable that names it."""
    path = folder / FORK_SERVER
    path.unlink(missing_ok=True)  # of a driver that was killed
    os.environ[variables.FORK_SERVER] = str(path)
    listens = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listens.bind(str(path))
    listens.listen(_QUEUE)
    return listens


def _print_lines(printed: IO[str] | None) -> None:
    """Print what the server prints: this process may continue its output in another file."""

    def follow() -> None:
        for line in printed or ():
            print(line, end="", flush=True)

    threading.Thread(target=follow, name="fork-server", daemon=True).start()
