import os
import subprocess
import sys

import pytest

from clustertrain.worker.machine.raylet_watch import EXIT_CODE
from support.leftovers import left_after, living_descendants

pytestmark = pytest.mark.slow

CHILD = """
import os, sys, time
from clustertrain.worker.machine.raylet_watch import end_with_raylet
end_with_raylet()
print(os.getpid(), flush=True)
while True:
    sum(range(100_000))
"""
RAYLET = """
import os, subprocess, sys
os.environ["RAY_RAYLET_PID"] = str(os.getpid())
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""


def test_a_rank_ends_with_its_raylet_while_it_computes():
    before = set(living_descendants())
    raylet = subprocess.Popen([sys.executable, "-c", RAYLET, CHILD], stdout=subprocess.PIPE, text=True)
    with raylet:
        child = int(raylet.stdout.readline())
        assert raylet.poll() is None
        raylet.kill()
    _, status = os.waitpid(child, 0)  # this process is its subreaper
    assert os.waitstatus_to_exitcode(status) == EXIT_CODE
    assert left_after(0, before) == {}
