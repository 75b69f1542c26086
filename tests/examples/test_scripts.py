"""The unchanged scripts: under torchrun, and with the environment that a worker gives them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clustertrain.node.network import LOOPBACK
from clustertrain.node.ports import free_block
from clustertrain.worker.place import Place
from clustertrain.worker.scripts.script import torchrun_environment
from support.commands import ran

EXAMPLE = Path(__file__).parents[2] / "examples" / "scripts"


@pytest.mark.run
def test_the_script_runs_under_plain_torchrun(tmp_path):
    for _ in range(3):
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        environment = {**os.environ, "TMPDIR": str(tmp_path)}  # torchrun leaves its own files behind
        done = ran([*torchrun, EXAMPLE / "train.py", "--epochs", "1"], env=environment)
        # torch 2.13: threads of gloo outlive the process group, and now and then one aborts an exit that has
        # nothing left to do. That is neither the script's nor ours.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert "on 2 ranks" in done.stdout


def test_a_script_that_spawns_has_a_worker_per_node():
    """Each of two workers is one node of the script's arithmetic, with two ranks."""
    port = str(free_block(1, seed=os.getpid()).first)
    command = [sys.executable, "train_spawn.py", "--nprocs", "2", "--epochs", "2"]
    workers = []
    for node in (0, 1):
        place = Place(node, 2, local_rank=0, local_world_size=1, node_rank=node, address=LOOPBACK)
        environment = torchrun_environment(place, restart=0, retries=0, run_id="nodes-1")
        environment |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
        options = {"cwd": EXAMPLE, "env": {**os.environ, **environment}, "text": True}
        workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, **options))
    output = "".join(worker.communicate(timeout=200)[0] for worker in workers)
    assert [worker.returncode for worker in workers] == [0, 0], output
    first, last = (float(loss) for loss in re.findall(r"mean loss (\d+\.\d{4})", output))
    assert last < first
    # The two ranks of a worker write into one pipe: a line may have the beginning of the next one at its end.
    done = sorted(re.findall(r"rank \d of 4 is done, on node \d of 2", output))
    assert done == [f"rank {rank} of 4 is done, on node {rank // 2} of 2" for rank in range(4)]
