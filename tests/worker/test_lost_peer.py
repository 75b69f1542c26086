import pytest

from clustertrain.worker.lost_peer import shows_lost_peer


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("DistBackendError", "NCCL error in: NCCLUtils.cpp:133"),
        ("DistNetworkError", "The client socket has failed to connect"),
        (
            "RuntimeError",
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        ),
        ("RuntimeError", "ncclRemoteError: a remote process exited"),
    ],
)
def test_what_torch_reports_of_a_rank_that_is_gone(name, message):
    assert shows_lost_peer(name, message)


def test_an_error_of_the_code_is_none_of_them():
    assert not shows_lost_peer("ValueError", "no peer in sight")
