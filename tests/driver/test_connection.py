"""A process that waits for the head of a Ray cluster."""

import socket

from ray.exceptions import AuthenticationError, RpcError

from clustertrain.driver import connection


class Client:
    """The GCS as a client sees it: it refuses, is late, has no node yet, and has one."""

    made = 0

    def __init__(self, address: str) -> None:
        type(self).made += 1
        if self.made == 1:
            raise RpcError("Deadline Exceeded")

    def get_all_node_info(self, timeout: float) -> dict:
        if self.made == 2:
            raise AuthenticationError("WrongClusterID: perhaps the GCS has restarted")
        self.asked = getattr(self, "asked", 0) + 1
        return {"id": "node"} if self.asked == 2 else {}


def test_a_head_whose_ray_is_started_again_is_waited_for(monkeypatch):
    monkeypatch.setattr("clustertrain.driver.ray_internals.GcsClient", Client)
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = connection.RayHead(f"127.0.0.1:{server.getsockname()[1]}")
        assert [head.has_node() for _ in range(4)] == [False, False, False, True]
        assert Client.made == 3
    assert not connection.RayHead(head._address).has_node()
