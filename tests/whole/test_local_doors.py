"""Other users and the network get nothing out of a run on one machine: docs/concepts/security.md."""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from ipaddress import ip_address
from pathlib import Path

import pytest

from clusters.slurm import NOBODY
from support.network_probe import sockets
from support.whole_run import ONE_WORKER

CANARY = secrets.token_hex(12)
STRANGER = Path(__file__).parents[1] / "support" / "other_user.py"


@pytest.fixture
def shared():
    """A folder that others can enter, with a path short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="td-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_run_listens_on_the_loopback_interface_alone_and_its_files_are_closed_to_other_users(
    make_run, shared
):
    """And what `env` refers to is in none of them."""
    run = make_run(
        "guarded",
        task="faulty:Faulty",
        train={"epochs": 900, "batch_size": 4, "log_every": 1},
        args={"step_s": 0.3},
        storage=f"{shared}/runs",
        env={"KEY": "${KEY_OF_A_SERVER}"},
        **ONE_WORKER,
    )
    umask = os.umask(0o022)
    try:
        run.start(TMPDIR=shared, KEY_OF_A_SERVER=CANARY).wait_for_step(2)
    finally:
        os.umask(umask)
    pids = run.left(0)
    listening = [each for each in sockets()["tcp"] if each[3] in pids]
    assert sum("RayTrainWorker" in command for _, _, command, _ in listening) == 3, "its own, store and gloo"
    assert [each for each in listening if not is_loopback(each[0])] == []
    command = [sys.executable, str(STRANGER), str(NOBODY), shared]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert found["sockets"] >= 2, "the raylet and the object store"
    assert found["open"] == []
    environment = Path(f"/proc/{run.driver_pid()}/environ").read_text().split("\0")
    assert f"KEY={CANARY}" in environment
    assert with_the_canary(shared) == [], "not even in the logs of Ray"
    run.process.send_signal(signal.SIGINT)
    run.end(75)
    assert with_the_canary(shared) == []


def with_the_canary(folder: str) -> list[Path]:
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    assert len(files) > 10
    return [path for path in files if CANARY.encode() in path.read_bytes()]


def is_loopback(address: str) -> bool:
    return ip_address(address.removeprefix("::ffff:")).is_loopback
