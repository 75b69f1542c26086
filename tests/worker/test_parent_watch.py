import os
import subprocess
import sys
import time

import pytest

from clustertrain.worker.machine.parent_watch import EXIT_CODE
from leftovers import left_after, living_descendants

pytestmark = pytest.mark.slow

CHILD = """
import os, sys, time
from clustertrain.worker.machine.parent_watch import end_with_parent
end_with_parent()
print(os.getpid(), flush=True)
while True:
    sum(range(100_000))
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_a_process_ends_with_its_parent_while_it_computes():
    before = set(living_descendants())
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    with parent:
        child = int(parent.stdout.readline())
        time.sleep(0.5)
        assert parent.poll() is None
        parent.kill()
    _, status = os.waitpid(child, 0)  # this process is its subreaper
    assert os.waitstatus_to_exitcode(status) == EXIT_CODE
    assert left_after(0, before) == {}
