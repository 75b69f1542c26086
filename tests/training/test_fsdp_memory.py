"""A model that is larger than the memory of one rank trains on two."""

import contextlib
import os
import re
import socket
import subprocess
import sys

import pytest

from support.cgroups import WITHIN, memory_cgroup
from training.large_model import WEIGHTS_BYTES

pytestmark = pytest.mark.slow

LIMIT_BYTES = WEIGHTS_BYTES * 95 // 100


def _train(strategy: str, world_size: int) -> list[tuple[int, str]]:
    """(exit code, output) of each rank, each in a cgroup of its own."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.close()
        processes = []
        for rank in range(world_size):
            cgroup = stack.enter_context(memory_cgroup(LIMIT_BYTES))
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
            process = subprocess.Popen(
                [
                    *WITHIN,
                    str(cgroup / "cgroup.procs"),
                    sys.executable,
                    "-m",
                    "training.large_model",
                    strategy,
                ],
                env=os.environ
                | {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
                | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
                | {name: str(value) for name, value in ranks.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            processes.append(process)
        outputs = [process.communicate()[0] for process in processes]
        return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.nightly  # 60 CPU seconds
def test_weights_larger_than_the_limit_of_a_rank_train_on_two():
    answers = _train("fsdp", 2)
    assert [code for code, _ in answers] == [0, 0], answers
    first, second = (float(loss) for loss in re.findall(r"loss ([\d.]+)", answers[0][1]))
    assert second < first
    (code, output), *_ = _train("ddp", 1)
    assert code == -9 and "loss" not in output, "the kernel ends one rank with the whole model"
