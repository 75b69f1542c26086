"""A block of ports that is free, and stays out of the kernel's way."""

import socket
from pathlib import Path

import pytest

from clustertrain.errors import ClusterError
from clustertrain.node import ports
from clustertrain.node.ports import Ports, free_block, free_port


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


def test_a_block_with_a_listener_is_skipped():
    block = free_block(10, seed=3)
    with listening(block.first + 5):
        assert free_block(10, seed=3).first != block.first
    assert free_block(10, seed=3) == block


def test_a_listener_on_ipv6_only_counts():
    block = free_block(10, seed=5)
    with listening(block.first + 1, socket.AF_INET6, "::1"):
        assert free_block(10, seed=5).first != block.first


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


def test_no_free_block_is_an_error(monkeypatch):
    monkeypatch.setattr(ports, "_can_bind", lambda family, port: False)
    with pytest.raises(ClusterError, match="No 40 free ports in a row"):
        free_block(40, seed=0)


def test_a_port_of_the_block():
    block = free_block(3, seed=9)
    with listening(block.last):
        assert free_port(block) == block.last - 1


def test_a_block_survives_its_text():
    assert Ports.parse(str(Ports(20100, 20139))) == Ports(20100, 20139)


@pytest.mark.parametrize(
    ("text", "first"), [("32768\t60999\n", 32768), ("1024 65535", 32768), ("", 32768), ("15000 20000", 15000)]
)
def test_where_the_kernel_begins(tmp_path, monkeypatch, text, first):
    path = tmp_path / "range"
    path.write_text(text)
    monkeypatch.setattr(ports, "_EPHEMERAL", path)
    assert ports._first_ephemeral() == first
