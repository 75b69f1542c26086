"""Every node writes and reads every other: real mount namespaces stand for nodes."""

import math
import os
import sys

import pytest

from clustertrain.errors import StorageError
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.worker.machine import storage_probe as node_probe
from clustertrain.worker.machine.storage_probe import read_by, read_nonces, remove_nonce, write_nonce
from support.commands import ran
from support.fault_proxy import FaultProxy, put, status
from support.mounts import apart

pytestmark = pytest.mark.slow

NONCES = {0: "ours", 1: "theirs"}
_OTHER_NODE = """
import sys
from clustertrain.errors import StorageError
from clustertrain.worker.machine.storage_probe import write_nonce
from clustertrain.run_files.attempt_ref import AttemptRef
try:
    write_nonce(AttemptRef.from_text(sys.argv[1]), 0, 1, {1: "theirs"})
except StorageError as error:
    sys.exit(str(error))
"""


def test_two_nodes_that_share_it_leave_nothing(attempt):
    for step in (write_nonce, read_nonces, remove_nonce):
        for node_rank in NONCES:
            step(AttemptRef.of(attempt), 0, node_rank, NONCES)
    assert attempt.run.store.list(attempt.restart(0).key) == []


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 7, 8, 100, 1250])
def test_the_number_of_texts_that_a_node_reads_grows_with_the_logarithm(nodes):
    for node in range(nodes):
        read = read_by(node, nodes)
        assert len(read) == len(set(read) - {node}) == math.ceil(math.log2(nodes))


@pytest.mark.parametrize("nodes", range(2, 9))
def test_a_storage_of_any_part_of_the_nodes_is_found(nodes):
    """A node with one storage reads from a node with the other, and one with the other from one with it."""
    for part in range(1, 2**nodes - 1):
        of = [bool(part >> node & 1) for node in range(nodes)]
        reads = [(node, other) for node in range(nodes) for other in read_by(node, nodes)]
        crossings = {of[node] for node, other in reads if of[node] != of[other]}
        assert crossings == {True, False}


@pytest.fixture
def on_another_node(tmp_path):
    """Runs the other node's part with mounts of its own, made by the shell line `mounts`."""
    storage = tmp_path / "runs"
    storage.mkdir()
    attempt = RunDir.newest(str(storage), "digits").attempt(1)

    def start(mounts):
        program = [sys.executable, "-c", _OTHER_NODE, AttemptRef.of(attempt).to_text()]
        return attempt, ran([*apart(mounts.format(storage)), *program])

    return start


def test_a_path_that_is_another_file_system_on_one_node_is_named(on_another_node, monkeypatch):
    monkeypatch.setattr(node_probe, "PATIENCE_S", 0.5)
    attempt, done = on_another_node("mount -t tmpfs none {}")
    assert done.returncode == 0, done.stderr
    write_nonce(AttemptRef.of(attempt), 0, 0, NONCES)
    with pytest.raises(StorageError) as caught:
        read_nonces(AttemptRef.of(attempt), 0, 0, NONCES)
    text = str(caught.value)
    assert "Node 1 wrote theirs" in text
    assert "reads nothing there" in text
    assert "another file system on one of the two" in text
    assert os.uname().nodename in text


def test_a_mount_that_is_read_only_on_one_node_is_named(on_another_node):
    _, done = on_another_node("mount --bind {0} {0} && mount -o remount,bind,ro {0}")
    assert done.returncode == 1
    assert f"On {os.uname().nodename}: " in done.stderr
    assert f"by uid {os.geteuid()}: Read-only file system" in done.stderr


def test_a_node_without_the_right_to_write_names_action_key_and_status(moto_s3):
    with FaultProxy(moto_s3.endpoint) as proxy:
        run = RunDir.newest(moto_s3.through(proxy.endpoint).location("runs"), "digits")
        proxy.script(status(403, "AccessDenied"), when=put)
        with pytest.raises(StorageError) as caught:
            write_nonce(AttemptRef.of(run.attempt(1)), 0, 0, NONCES)
    text = str(caught.value)
    assert f"On {os.uname().nodename}: PUT s3://{moto_s3.bucket}/runs/digits/g1/attempts/1/" in text
    assert "HTTP 403 AccessDenied" in text
