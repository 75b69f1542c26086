"""A node's own address and interface, and a block of ports that is free."""

import socket
import sys
from pathlib import Path

import pytest

from clustertrain.errors import ClusterError
from clustertrain.node import ports
from clustertrain.node.network import address_towards, interface_variables
from clustertrain.node.ports import Ports, free_block, free_port
from support.commands import ran


def test_an_unknown_name_is_an_error():
    with pytest.raises(ClusterError, match="has no route to no-such-node"):
        address_towards("no-such-node.invalid")


def test_the_route_decides_between_two_interfaces():
    """In a network of its own: two interfaces, and each address is reached through its own."""
    code = (
        "from clustertrain.node.network import *\n"
        "for address in map(address_towards, ('198.51.100.9', '203.0.113.9')):\n"
        "    print(address, interface_of(address))"
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
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_variables("127.0.0.1") == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert interface_variables("203.0.113.7") == {}, "no interface has it: they choose one themselves"


def listening(port, family=socket.AF_INET, address="127.0.0.1"):
    server = socket.socket(family, socket.SOCK_STREAM)
    server.bind((address, port))
    server.listen()
    return server


def test_a_block_lies_below_the_ephemeral_range():
    block = free_block(40, seed=0)
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert block.last - block.first == 39
    assert block.last < first_ephemeral or first_ephemeral <= 12_000


@pytest.mark.parametrize("of", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_block_with_a_listener_is_skipped(of):
    block = free_block(10, seed=3)
    with listening(block.first + 5, *of):
        assert free_block(10, seed=3).first != block.first
    assert free_block(10, seed=3) == block
    assert Ports.parse(str(block)) == block


def test_ports_that_are_given_to_others_are_no_part_of_a_block():
    """`ray start` gives 10002 to 19999 to workers, and refuses another use of them."""
    assert all(free_block(4, seed=seed, taken=range(10002, 20000)).first >= 20000 for seed in range(200))


@pytest.mark.parametrize("count", [10, 150])
def test_the_blocks_of_two_seeds_have_no_port_in_common(monkeypatch, count):
    """Two SLURM jobs that share a node begin at the same time."""
    monkeypatch.setattr(ports, "_is_free", lambda port: True)  # other processes take and free ports meanwhile
    for seed in range(300):
        blocks = sorted((free_block(count, seed=each) for each in (seed, seed + 1)), key=lambda b: b.first)
        assert blocks[0].last < blocks[1].first


def test_no_free_block_is_an_error():
    with pytest.raises(ClusterError, match="No 40 free ports in a row"):
        free_block(40, seed=0, taken=range(1, 65536))


def test_a_port_of_the_block():
    block = free_block(3, seed=9)
    with listening(block.last):
        assert free_port(block) == block.last - 1


@pytest.mark.parametrize(
    ("text", "first"), [("32768\t60999\n", 32768), ("1024 65535", 32768), ("", 32768), ("15000 20000", 15000)]
)
def test_blocks_end_where_the_ephemeral_ports_of_the_kernel_begin(tmp_path, monkeypatch, text, first):
    path = tmp_path / "range"
    path.write_text(text)
    monkeypatch.setattr(ports, "EPHEMERAL", path)
    assert ports._first_ephemeral() == first
