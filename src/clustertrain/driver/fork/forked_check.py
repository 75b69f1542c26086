"""The check of a job's code as a fork of the fork server, which has imported torch.

    clustertrain run ──request, pipes──▶ fork server ──▶ guardian ──▶ second guardian ──▶ check

`clustertrain run` takes the guardian over, since it is not its parent. Without a fork server the check is a
process of its own.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from clustertrain.supervise.check_process import CheckFolder
from clustertrain.supervise.early_driver import EarlyDriver
from clustertrain.supervise.process import Adopted, Guarded
from clustertrain.waiting import wait_until

_POLL_S = 0.02


def start_check(
    driver: EarlyDriver, folder: CheckFolder, environment: Mapping[str, str], is_over: Callable[[], bool]
) -> Guarded | None:
    """Start the check below this driver. None if that has no fork server, or `is_over()` comes first."""
    path = driver.fork_server(is_over)
    if not path:
        return None
    request = {"check": str(folder.path), "environment": dict(environment), "folder": str(Path.cwd())}
    reads, holds = os.pipe()  # as in Guarded
    alive, writes = os.pipe()
    guardian: list[int] = []
    with (
        suppress(OSError),  # the server has ended, or has not answered
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        folder.log.open("ab") as log,
    ):
        server.connect(path)
        socket.send_fds(server, [json.dumps(request).encode()], [reads, writes, log.fileno()])
        wait_until(lambda: select.select([server], [], [], 0)[0] or is_over(), math.inf, _POLL_S)
        server.setblocking(False)
        _, guardian, _, _ = socket.recv_fds(server, 1, 1)
    ours = [*guardian, holds, alive]
    for each in (reads, writes, *(() if guardian else ours)):
        os.close(each)
    return Adopted(folder.log, ours) if guardian else None
