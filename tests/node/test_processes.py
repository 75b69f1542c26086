"""Signals that are recorded instead of ending the process, and names that the kernel has cut."""

import os
import signal
import sys

from clustertrain.node.signals import handled_signals
from support.commands import ran


def test_signals_are_recorded_in_their_order_and_only_within_the_block():
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)
    with handled_signals([signal.SIGUSR1, signal.SIGUSR2]) as received:
        assert received == []
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert received == [signal.SIGUSR2, signal.SIGUSR1]
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)) == before


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
