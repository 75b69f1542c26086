"""Asks the fork server of this node for a worker process.

Ray runs this file as a program in place of its setup_worker.py, which would import Ray twice. It imports next
to nothing. If there is no fork server, or none that answers, it does what setup_worker.py does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_NAME = "CLUSTERTRAIN_FORK_SERVER"  # variables.FORK_SERVER, whose module this program must not import
_ANSWER_S = 30.0  # the server may still import; Ray gives a worker 60 s


def ask(request: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a request to the fork server of this node, and wait until it has been accepted.

    Raises:
        OSError: there is no fork server, or it does not accept the request.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.settimeout(_ANSWER_S)
        server.connect("\0" + os.environ.get(_NAME, ""))
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
    from runpy import run_module

    run_module("ray._private.workers.setup_worker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
