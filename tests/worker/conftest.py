"""A fork server beside the tests of this folder, as beside a rank."""

import os
import subprocess
import sys
from tempfile import TemporaryDirectory

import pytest

from clustertrain import variables

SERVER = """
import os, sys
from pathlib import Path
from clustertrain.driver.fork.starter import start_fork_server
start_fork_server(Path(sys.argv[1]), 1.0)
print(os.environ["CLUSTERTRAIN_FORK_SERVER"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def fork_socket():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        TemporaryDirectory(dir="/tmp") as folder,  # a short path
        subprocess.Popen(
            [sys.executable, "-c", SERVER, folder],
            stdin=subprocess.PIPE,  # its end is that of the server
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        ) as starter,
    ):
        yield starter.stdout.readline().strip()


@pytest.fixture
def fork_server(fork_socket, monkeypatch):
    """This process has the environment of a rank beside a fork server."""
    monkeypatch.setenv(variables.FORK_SERVER, fork_socket)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
