"""A test, before training, that every node can write the storage and reads what other nodes wrote.

On one node the path may be another file system, the mount read-only, or a credential missing. The test takes
a second; without it, the first checkpoint would fail after hours. Each function runs on one rank per node.

A node reads the texts of the nodes that are 1, 2, 4, 8, … before it in their circle. That finds what reading
all of them finds: if the path is two file systems, there is a node with one of them whose predecessor has the
other, and it does not find that node's text. Of a thousand nodes each reads ten texts, and not a thousand.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from clustertrain.errors import StorageError
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.storage import Store

PATIENCE_S = 15.0  # NFS caches for some seconds that a file does not exist
_RETRY_S = 60.0


def read_by(node_rank: int, nodes: int) -> list[int]:
    """Return the nodes whose texts a node reads: the nearest before it, then each time twice as far away."""
    return [(node_rank - (1 << power)) % nodes for power in range((nodes - 1).bit_length())]


def write_nonce(ref: AttemptRef, restart: int, node_rank: int, nonces: Mapping[int, str]) -> None:
    """Write the random text of this node for the others; `nonces`: by node rank, with that of this node.

    Raises:
        StorageError: this node cannot write; names the host and the error.
    """
    with _file(ref, restart, node_rank) as (store, key):
        store.write_atomic(key, nonces[node_rank].encode())


def read_nonces(ref: AttemptRef, restart: int, node_rank: int, nonces: Mapping[int, str]) -> None:
    """Read the texts in `nonces`, by the rank of the node that wrote each.

    Raises:
        StorageError: one is missing or differs; names both nodes and the path.
    """
    for other, nonce in nonces.items():
        with _file(ref, restart, other) as (store, key):
            found, uri = _read(store, key, nonce), store.uri(key)
        if found != nonce:
            raise StorageError(
                f"Node {other} wrote {nonce} to {uri}, and {socket.gethostname()} "
                f"reads {found or 'nothing'} there after {PATIENCE_S:g} s.\n"
                "Likely cause: this path is another file system on one of the two. Give `storage` a path "
                "that all nodes share, or s3://…"
            )


def remove_nonce(ref: AttemptRef, restart: int, node_rank: int, nonces: Mapping[int, str]) -> None:
    """Remove the text of this node.

    Raises:
        StorageError: this node cannot remove what it wrote.
    """
    with _file(ref, restart, node_rank) as (store, key):
        store.remove(key)


def _read(store: Store, key: str, nonce: str) -> str:
    """Read the text that is there, once it is the expected one or `PATIENCE_S` seconds have passed."""

    def text() -> str:
        return (store.read_or_none(key) or b"").decode(errors="replace")

    is_there = wait_until(lambda: text() == nonce, PATIENCE_S, poll_s=0.2)
    return nonce if is_there else text()


@contextmanager
def _file(ref: AttemptRef, restart: int, node_rank: int) -> Iterator[tuple[Store, str]]:
    """Yield the store and the key of the file of a node. An error of the storage names this host."""
    attempt = ref.open()
    try:
        yield attempt.run.with_patience(_RETRY_S).store, attempt.restart(restart).probe_key(node_rank)
    except StorageError as error:
        raise StorageError(f"On {socket.gethostname()}: {error}") from error
