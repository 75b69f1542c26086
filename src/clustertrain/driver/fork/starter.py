"""Starts the fork server of a node."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
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
    # OpenMP and numpy read it when they are loaded; Ray would set the same number.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, math.floor(cpus_per_worker))))
    with _listening(folder) as listens:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "clustertrain.driver.fork.server", str(listens.fileno())],
            stdin=subprocess.PIPE,  # its end is the end of this process
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[listens.fileno()],
            text=True,
            errors="replace",
        )
    _print_lines(server.stdout)


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
