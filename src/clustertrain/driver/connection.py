"""Waits for the head of a Ray cluster, and connects the driver to it."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayError

from clustertrain.errors import ClusterError
from clustertrain.node.network import is_listening


def connect_to(address: str, what: str, remedy: str, **options: Any) -> None:
    """Connect this process to a Ray that runs.

    Raises:
        ClusterError: it does not answer, or refuses; the message begins with `what`.
    """
    try:
        ray.init(address=address, log_to_driver=False, **options)
    except (ConnectionError, OSError, ValueError, RuntimeError, RayError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ClusterError(f"{what}: {first}\n{remedy}") from error


class RayHead:
    """The head of a Ray cluster, for a process that waits for it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Any = None

    def has_node(self) -> bool:
        """Return whether the head has registered its own node: other nodes and drivers can connect then."""
        host, _, port = self._address.rpartition(":")
        if self._client is None and not is_listening(host, int(port)):
            return False
        from clustertrain.driver.ray_internals import GcsClient

        try:
            self._client = self._client or GcsClient(address=self._address)
            return bool(self._client.get_all_node_info(timeout=5))
        except RayError as error:
            print(f"The head does not answer yet: {error}", flush=True)
            self._client = None  # a head that was started again refuses the client of the start before
            return False
