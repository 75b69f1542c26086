"""Whether an exception only shows that another rank is gone: what Gloo, NCCL and torch's store report of a
lost connection."""

from __future__ import annotations

import re

_CLASSES = {"DistBackendError", "DistNetworkError", "DistStoreError"}
_MESSAGE = re.compile(r"gloo/transport/|closed by peer|ncclRemoteError|remote process exited")


def shows_lost_peer(name: str, message: str) -> bool:
    """By the name of the exception's class, and its message."""
    return name in _CLASSES or _MESSAGE.search(message) is not None
