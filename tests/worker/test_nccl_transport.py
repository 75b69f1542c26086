"""NCCL's lines and the transport that they show. The lines are made from the formats in the source of NCCL
2.29.7 (src/init.cc, src/transport/net.cc, net_ib/init.cc, net_socket.cc, p2p.cc, shm.cc), with the beginning
that src/debug.cc gives each; no GPU was used to produce them."""

import os
from pathlib import Path

import pytest

from clustertrain.worker import nccl_transport
from clustertrain.worker.nccl_transport import forget_settings, transport_of, write_lines_to


def lines(*texts):
    return "".join(f"node7:4711:4790 [0] NCCL INFO {text}\n" for text in texts)


IB = lines(
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.4<0>",
    "Initialized NET plugin IB",
    "Assigned NET plugin IB to comm",
    "Using network IB",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    "Channel 00/0 : 0[0] -> 15[7] [send] via NET/IB/1(3)/GDRDMA/Shared",
    "Connected all rings, use ring PXN 0 GDR 1",
)
SOCKET = lines(
    "NET/IB : No device found.",
    "NET/Socket : Using [0]eth0:10.0.0.4<0> [1]eth1:10.1.0.4<0>",
    "Using network Socket",
    "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
    "Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0",
)
PLUGIN = lines(
    "NET/OFI Initializing aws-ofi-nccl 1.14.0",
    "Using network AWS Libfabric",
    "Channel 00/0 : 1[1] -> 2[0] [send] via NET/AWS Libfabric/0/GDRDMA",
)
ONE_NODE = lines("Using network IB", "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC")


@pytest.mark.parametrize(
    ("text", "shown", "reaches_others"),
    [
        (IB, "network IB (mlx5_0:1/IB, mlx5_1:1/IB), GPUDirect RDMA; P2P/CUMEM/read", True),
        (SOCKET, "network Socket (eth0:10.0.0.4<0>, eth1:10.1.0.4<0>); SHM/direct/direct", True),
        (PLUGIN, "network AWS Libfabric, GPUDirect RDMA", True),
        (ONE_NODE, "network IB; P2P/IPC", False),
    ],
    ids=["ib", "socket", "plugin", "one node"],
)
def test_the_transport_of_a_node(text, shown, reaches_others):
    transport = transport_of([text])
    inside = " between the GPUs of the node" if transport.within else ""
    assert transport.text("node7") == f"NCCL on node7: {shown}{inside}"
    assert transport.reaches_others == reaches_others


def test_the_lines_of_all_ranks_of_a_node_count():
    first, second = (
        lines("Using network IB"),
        lines("Using network IB", "Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA"),
    )
    assert not transport_of([first]).reaches_others
    assert transport_of([first, second]).reaches_others


@pytest.mark.parametrize("text", ["", "NCCL version 2.29.7+cuda13.0\n", IB.replace("Using network", "Chose")])
def test_lines_of_another_format_are_no_transport(text):
    assert transport_of([text]) is None


def test_tcp_beside_infiniband_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(nccl_transport, "INFINIBAND", tmp_path)
    assert transport_of([SOCKET]).problem("node7") is None, "the node has nothing else"
    (tmp_path / "mlx5_0").mkdir()
    assert (
        transport_of([SOCKET])
        .problem("node7")
        .startswith(f"NCCL on node7 uses TCP between nodes, although the node has mlx5_0 in {tmp_path}.\n")
    )
    assert transport_of([IB]).problem("node7") is None
    alone = SOCKET.replace("[send] via NET", "[send] near NET")
    assert transport_of([alone]).problem("node7") is None, "the network is not used"


@pytest.fixture
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.usefixtures("no_settings")
def test_nccl_writes_its_lines_to_a_file_of_the_rank(tmp_path):
    path = tmp_path / "100%" / "0.log"
    assert write_lines_to(path)
    assert path.parent.is_dir()
    assert os.environ["NCCL_DEBUG_FILE"] == f"{tmp_path}/100%%/0.log", "NCCL replaces %h and %p"
    forget_settings()
    assert not [name for name in os.environ if name.startswith("NCCL_")]


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"])
def test_the_settings_of_the_user_stay(name, tmp_path):
    os.environ[name] = "WARN"
    assert not write_lines_to(tmp_path / "0.log")
    assert {n: v for n, v in os.environ.items() if n.startswith("NCCL_")} == {name: "WARN"}


def test_the_installed_nccl_has_these_formats():
    """The strings of the library that torch brings, if there is one."""
    nvidia = pytest.importorskip("nvidia.nccl", reason="torch without NCCL")
    library = Path(next(iter(nvidia.__path__))) / "lib" / "libnccl.so.2"
    content = library.read_bytes()
    for text in (
        b"Using network %s",
        b"NET/IB : Using%s %s; OOB %s:%s",
        b"NET/Socket : Using%s",
        b"[send] via NET/%s/%d%s%s%s",
        b"[send] via NET/%s/%d(%d)%s%s%s",
        b" via P2P/%s%s%s",
        b" via SHM/%s/%s",
        b"NCCL_DEBUG_FILE",
        b"NCCL_DEBUG_SUBSYS",
    ):
        assert text in content, text
