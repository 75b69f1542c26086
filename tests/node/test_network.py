"""A node's own address and interface, on this machine's real ones and on some made in a namespace."""

import socket
import sys

import pytest

from clustertrain.errors import ClusterError
from clustertrain.node.network import (
    address_towards,
    interface_of,
    interface_variables,
    is_listening,
    is_refused,
)
from commands import ran


def test_loopback():
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None


def test_an_unknown_name_is_an_error():
    with pytest.raises(ClusterError, match="has no route to no-such-node"):
        address_towards("no-such-node.invalid")


def test_the_route_decides_between_two_interfaces():
    """In a network of its own: two interfaces, and each address is reached through its own."""
    code = (
        "from clustertrain.node.network import *\n"
        "print(address_towards('198.51.100.9'), interface_of(address_towards('198.51.100.9')))\n"
        "print(address_towards('203.0.113.9'), interface_of(address_towards('203.0.113.9')))\n"
    )
    set_up = (
        "ip link add left type veth peer name l2; ip link add right type veth peer name r2;"
        "ip addr add 198.51.100.1/24 dev left; ip addr add 203.0.113.1/24 dev right;"
        "for name in lo left l2 right r2; do ip link set $name up; done; "
    )
    done = ran(["unshare", "-n", "bash", "-c", f'{set_up} exec "$@"', "bash", sys.executable, "-c", code])
    if "unshare failed" in done.stderr:
        pytest.skip(f"no network namespace for this user: {done.stderr.strip()}")
    assert done.stdout.splitlines() == ["198.51.100.1 left", "203.0.113.1 right"], done.stderr


def test_nccl_and_gloo_use_the_interface_of_the_address():
    assert interface_variables("127.0.0.1") == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert interface_variables("203.0.113.7") == {}, "no interface has it: they choose one themselves"


def test_whether_a_process_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_listening("127.0.0.1", port)
        assert not is_refused("127.0.0.1", port)
    assert is_refused("127.0.0.1", port)
