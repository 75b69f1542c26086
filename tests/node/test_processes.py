"""A name of a process that the kernel has cut."""

import sys

from support.commands import ran

NAMED = """
import ctypes, os
ctypes.CDLL(None).prctl(15, "обучение.py".encode()[:15], 0, 0, 0)
from clustertrain.node.limits import process_state
from clustertrain.node.processes import this_process
assert this_process().pid == os.getpid()
assert process_state(os.getpid()) == "R (running)"
"""


def test_a_name_that_the_kernel_has_cut_in_the_middle_of_a_character():
    """A script that is started by its own name, without `python`, has the first 15 bytes of it."""
    ran([sys.executable, "-c", NAMED], code=0)
