"""The fork server of a node, and the process that has started it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

STARTER = """
import os, sys
from pathlib import Path
from clustertrain.driver.fork.starter import start_fork_server
start_fork_server(Path(sys.argv[1]), float(sys.argv[2]))
print(os.environ["CLUSTERTRAIN_FORK_SERVER"], flush=True)
sys.stdin.read()
"""


@contextmanager
def fork_server(
    cpus: float = 1.0, starter: str = STARTER, **environment: str
) -> Iterator[tuple[subprocess.Popen, str]]:
    """Within the block there is one. Yields the process that has started it, and the path of its socket."""
    with (
        TemporaryDirectory(dir="/tmp") as folder,  # a short path
        subprocess.Popen(
            [sys.executable, "-c", starter, folder, str(cpus)],
            stdin=subprocess.PIPE,  # its end is that of the server
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        ) as process,
    ):
        yield process, process.stdout.readline().strip()
