"""Signals that are recorded instead of ending the process."""

import os
import signal

from clustertrain.node.signals import handled_signals


def test_signals_are_recorded_in_their_order_and_only_within_the_block():
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)
    with handled_signals([signal.SIGUSR1, signal.SIGUSR2]) as received:
        assert received == []
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert received == [signal.SIGUSR2, signal.SIGUSR1]
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)) == before
