"""Whether the failure of a rank only shows that another rank is gone: what Gloo, NCCL and torch's store
report of a lost connection."""

from __future__ import annotations

import re

_CLASSES = {"DistBackendError", "DistNetworkError", "DistStoreError"}
_MESSAGE = re.compile(r"gloo/transport/|closed by peer|ncclRemoteError|remote process exited")
# torch's watchdog of NCCL aborts a rank whose peer is gone, or takes no part in a collective.
_ABORT = re.compile(rf"{_MESSAGE.pattern}|closed by remote peer|Watchdog caught collective operation timeout")
_OWN_FAULT = re.compile(r"(?:CUDA|HIP) error: ")  # the same watchdog aborts a rank whose own GPU failed


def shows_lost_peer(name: str, message: str) -> bool:
    """By the name of the exception's class, and its message."""
    return name in _CLASSES or _MESSAGE.search(message) is not None


def died_of_lost_peer(log: str) -> bool:
    """By the end of the log of a rank that has died. The rank that is at fault has another reason there, or,
    if it was killed, none."""
    return _ABORT.search(log) is not None and _OWN_FAULT.search(log) is None
