"""Starts the fork server of a node, together with Ray."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from clustertrain import variables
from clustertrain.worker.fork import client

SETUP_WORKER = client.__file__
"""What Ray has to start for each worker process."""

_QUEUE = 128


def start_fork_server(folder: Path, cpus_per_worker: float) -> None:
    """Start the fork server; it ends with this process. Processes that this one starts from now on know it.

    OpenMP and numpy read the number of their threads when they are loaded: it is the one that Ray would set.

    Args:
        folder: a private folder with a short path, for the socket: who connects has code run.
    """
    threads = max(1, math.floor(cpus_per_worker))
    path = folder / "fork"
    path.unlink(missing_ok=True)  # of a driver that was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listens:
        listens.bind(str(path))
        listens.listen(_QUEUE)
        server = subprocess.Popen(
            [sys.executable, "-m", "clustertrain.driver.fork.server", str(listens.fileno())],
            stdin=subprocess.PIPE,  # its end is the end of this process
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[listens.fileno()],
            env={"OMP_NUM_THREADS": str(threads), **os.environ},
            text=True,
            errors="replace",
        )
    threading.Thread(target=_print_lines, args=(server,), name="fork-server", daemon=True).start()
    os.environ[variables.FORK_SERVER] = str(path)


def _print_lines(server: subprocess.Popen[str]) -> None:
    """Print what the server prints: this process may continue its output in another file."""
    for line in server.stdout or ():
        print(line, end="", flush=True)
