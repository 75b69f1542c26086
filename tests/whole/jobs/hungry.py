"""A task that exceeds the limit of its memory."""

from faulty import Faulty

CHUNK_BYTES = 64 << 20


class Hungry(Faulty):
    """From `at_call` on it takes as much memory as can be had."""

    def strike(self, loss):
        taken = []
        while True:
            taken.append(bytearray(b"x") * CHUNK_BYTES)  # every page is touched
