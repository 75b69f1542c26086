"""A Ray cluster of a test's own on this machine, with nodes that can be ended and started again."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.waiting import wait_until


def start_ray(folder, name, environment, *arguments, within=()):
    """A node of a Ray cluster under a guardian, which ends it whatever Ray does about it; returns it when the
    node is up. `within`: a command that the node runs in."""
    log = Path(folder) / f"{name}.log"
    ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--object-store-memory=100000000"]
    guardian = subprocess.Popen(
        [
            *(sys.executable, "-m", "clustertrain.supervise.guardian", f"{folder}/{name}", str(log)),
            *(*within, *ray, "--num-cpus=2", *arguments),
        ],
        stdin=subprocess.PIPE,
        env={**os.environ, **environment},
    )

    def is_up():
        assert guardian.poll() is None, log.read_text()
        return log.exists() and "Ray runtime started" in log.read_text()

    wait_until(is_up, 240, log.read_text)
    return guardian


def end_ray(guardian):
    guardian.stdin.close()
    guardian.wait(10)


@pytest.fixture
def cluster():
    """A Ray cluster of the test's own, with a token; yields the environment that reaches it."""
    with tempfile.TemporaryDirectory(prefix="ct-test-") as folder:
        token = Path(folder) / "token"
        token.write_text("0123456789abcdef" * 4)
        token.chmod(0o600)
        environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        port = 20000 + os.getpid() % 10000
        head = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
        guardian = start_ray(folder, "ray", environment, *head, f"--temp-dir={folder}/ray")
        yield {**environment, "RAY_ADDRESS": f"127.0.0.1:{port}"}
        end_ray(guardian)
