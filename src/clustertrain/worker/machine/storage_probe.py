"""A test, before training, that every node can write the storage and reads what every other node wrote.

On one node the path may be another file system, the mount read-only, or a credential missing. The test takes
a second; without it, the first checkpoint would fail after hours. Each function runs on one rank per node.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from clustertrain.errors import StorageError
from clustertrain.run.folder import Attempt
from clustertrain.storage import Store
from clustertrain.waiting import wait_until

_T = TypeVar("_T")
_PATIENCE_S = 15.0  # NFS caches for some seconds that a file does not exist
_RETRY_S = 60.0


def write_nonce(attempt: Attempt, restart: int, node_rank: int, nonce: str) -> None:
    """Write a random text for the other nodes.

    Raises:
        StorageError: this node cannot write; names the host and the error.
    """
    key = attempt.restart(restart).probe_key(node_rank)
    _on_this_host(lambda store: store.write_atomic(key, nonce.encode()), attempt)


def read_nonces(attempt: Attempt, restart: int, nonces: Mapping[int, str]) -> None:
    """Read the texts of all nodes, by node rank.

    Raises:
        StorageError: one is missing or differs; names both nodes and the path.
    """
    for node_rank, nonce in nonces.items():
        key = attempt.restart(restart).probe_key(node_rank)
        found = _on_this_host(partial(_read, key=key, nonce=nonce), attempt)
        if found != nonce:
            raise StorageError(
                f"Node {node_rank} wrote {nonce} to {attempt.run.store.uri(key)}, and {socket.gethostname()} "
                f"reads {found or 'nothing'} there after {_PATIENCE_S:g} s.\n"
                "Likely cause: this path is another file system on one of the two. Give `storage` a path "
                "that all nodes share, or s3://…"
            )


def remove_nonce(attempt: Attempt, restart: int, node_rank: int) -> None:
    """Remove the text of this node.

    Raises:
        StorageError: this node cannot remove what it wrote.
    """
    _on_this_host(lambda store: store.remove(attempt.restart(restart).probe_key(node_rank)), attempt)


def _read(store: Store, key: str, nonce: str) -> str:
    """The text that is there, once it is the expected one or `_PATIENCE_S` seconds have passed."""

    def read() -> str:
        return (store.read_or_none(key) or b"").decode(errors="replace")

    return nonce if wait_until(lambda: read() == nonce, _PATIENCE_S, poll_s=0.2) else read()


def _on_this_host(operation: Callable[[Store], _T], attempt: Attempt) -> _T:
    try:
        return operation(attempt.run.with_patience(_RETRY_S).store)
    except StorageError as error:
        raise StorageError(f"On {socket.gethostname()}: {error}") from error
