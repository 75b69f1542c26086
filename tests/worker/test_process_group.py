"""The deadline for making a process group, and the ranks that its message names."""

import subprocess
import sys

import pytest

from clustertrain.node.ports import free_block
from clustertrain.worker.watchdog import EXIT_CODE

pytestmark = pytest.mark.slow


RANK = """
import sys
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.worker.process_group import GroupSpec, make_process_group, what_is_missing
from clustertrain.worker.stacks import Stacks
from clustertrain.worker.watchdog import WatchdogThread

rank, port, limit_s = map(int, sys.argv[1:])
spec = GroupSpec("gloo", "127.0.0.1", port, ("node1", "node7"), 600.0)
stacks = Stacks(RunDir.newest(".", f"of-{port}").attempt(1).restart(0), rank, 1)
explain = lambda: what_is_missing(spec)
with WatchdogThread({"process_group": limit_s}, lambda text: None, stacks, explain=explain) as dog:
    dog.beat("process_group")
    make_process_group(spec, rank)
print("made", flush=True)
"""


def start(folder, rank, port, limit_s):
    command = [sys.executable, "-c", RANK, str(rank), str(port), str(limit_s)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, **pipes)


def test_a_rank_that_does_not_come_is_named_at_the_deadline(tmp_path):
    """Rank 0 waits for rank 1, and in another group rank 1 for rank 0."""
    ports = free_block(2, seed=7)
    processes = [start(tmp_path, 0, ports.first, 3), start(tmp_path, 1, ports.last, 3)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [EXIT_CODE, EXIT_CODE], errors
    for error in errors:
        assert "clustertrain: no progress in phase 'process_group' for 3 s (failures.watchdog." in error
    assert (
        f": 1 of 2 ranks have not reached rank 0 on node1 at 127.0.0.1:{ports.first}: rank 1 on node7\n"
    ) in errors[0]
    assert f": rank 0 on node1 at 127.0.0.1:{ports.last} does not answer on " in errors[1]
