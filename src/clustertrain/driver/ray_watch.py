"""Ends the driver when a process of the Ray that it started ends.

Ray notices the death of its GCS or of its raylet after 30 to 60 s, or not at all. The supervisor then starts
the driver again, and with it a new Ray.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Mapping
from typing import Any

from clustertrain.errors import EXIT_RAY_ENDED
from clustertrain.node.signals import ending_text
from clustertrain.supervise.driver_process import MARK


def end_with(processes: Mapping[str, Any]) -> None:
    """End this process with EXIT_RAY_ENDED as soon as one of these has ended: objects of subprocess.Popen, by
    Ray's names for them."""
    threading.Thread(target=_wait_and_end, args=(processes,), name="ray-watch", daemon=True).start()


def _wait_and_end(processes: Mapping[str, Any]) -> None:
    by_fd = {os.pidfd_open(process.pid): kind for kind, process in processes.items()}
    kind = by_fd[select.select(list(by_fd), [], [])[0][0]]
    how = ending_text(processes[kind].wait())
    print(f"{MARK}Ray's {kind} (pid {processes[kind].pid}) {how}", file=sys.stderr, flush=True)
    os._exit(EXIT_RAY_ENDED)
