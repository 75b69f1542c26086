"""Asks the fork server of this node for a worker process.

Ray runs this file as a program in place of its setup_worker.py, and imports next to nothing: setup_worker.py
would import Ray, to start a process that imports it again. Without an answer that program is run.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

NAME = "CLUSTERTRAIN_FORK_SERVER"  # variables.FORK_SERVER: this program does not import that module
_ANSWER_S = 30.0  # the server may still import; Ray gives a worker 60 s


def ask(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Send a request to the fork server of this node, and wait until it has been accepted.

    Raises:
        OSError: there is no fork server, or it does not accept the request.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.settimeout(_ANSWER_S)
        server.connect(os.environ.get(NAME, ""))
        # Not pathlib: this program imports next to nothing.
        text = json.dumps({**request, "environment": dict(os.environ), "folder": os.getcwd()})  # noqa: PTH109
        socket.send_fds(server, [text.encode()], list(files))
        if not server.recv(1):
            raise ConnectionError("the fork server has closed the connection")


def main() -> None:
    try:
        ask({"arguments": sys.argv[1:]}, files=(0, 1, 2))
    except OSError as error:
        print(f"clustertrain: this worker is not a fork: {error}", file=sys.stderr, flush=True)
    else:
        return
    worker = next(argument for argument in sys.argv if argument.endswith("default_worker.py"))
    setup = os.path.join(os.path.dirname(worker), "setup_worker.py")  # noqa: PTH118, PTH120  as above
    os.execv(sys.executable, [sys.executable, setup, *sys.argv[1:]])


if __name__ == "__main__":
    main()
