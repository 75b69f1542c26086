"""Proof, before training, that every node can write the storage and sees what every other node wrote.

A path may be another file system on one node, a mount read-only there, a credential missing: found now, it
costs a second; found by the first checkpoint, the hours before it. Each function runs on one rank per node.
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
_PATIENCE_S = 15.0  # NFS may remember for some seconds that a name was not there
_RETRY_S = 60.0


def write_nonce(attempt: Attempt, restart: int, node_rank: int, nonce: str) -> None:
    """Leave a random word for the other nodes.

    Raises:
        StorageError: this node cannot write; names the host, and what was refused.
    """
    key = attempt.restart(restart).probe_key(node_rank)
    _on_this_host(lambda store: store.write_atomic(key, nonce.encode()), attempt)


def read_nonces(attempt: Attempt, restart: int, nonces: Mapping[int, str]) -> None:
    """Find the words of all nodes, by node rank.

    Raises:
        StorageError: one is not there, or is another; names both nodes and the place.
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
    """Take the word of this node away.

    Raises:
        StorageError: this node cannot remove what it wrote.
    """
    _on_this_host(lambda store: store.remove(attempt.restart(restart).probe_key(node_rank)), attempt)


def _read(store: Store, key: str, nonce: str) -> str:
    """What is there, once it is the right word or `_PATIENCE_S` have passed."""

    def read() -> str:
        return (store.read_or_none(key) or b"").decode(errors="replace")

    return nonce if wait_until(lambda: read() == nonce, _PATIENCE_S, poll_s=0.2) else read()


def _on_this_host(operation: Callable[[Store], _T], attempt: Attempt) -> _T:
    try:
        return operation(attempt.run.with_patience(_RETRY_S).store)
    except StorageError as error:
        raise StorageError(f"On {socket.gethostname()}: {error}") from error
