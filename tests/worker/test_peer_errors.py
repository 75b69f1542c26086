import pytest

from clustertrain.worker.scripts.peer_errors import died_of_lost_peer, shows_lost_peer


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


# What torch 2.x and NCCL write to the log of a rank before they abort it.
OF_NCCL = {
    "peer": """
[rank0]:[E1123 ProcessGroupNCCL.cpp:2093] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog \
thread terminated with exception: NCCL error: remote process exited or there was a network error, \
NCCL version 2.27.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
terminate called after throwing an instance of 'c10::DistBackendError'
Fatal Python error: Aborted
""",
    "absent": """
[rank0]:[E1123 ProcessGroupNCCL.cpp:688] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) \
ran for 600013 milliseconds before timing out.
To avoid data inconsistency, we are taking the entire process down.
Fatal Python error: Aborted
""",
    "own": """
[rank3]:[E1123 ProcessGroupNCCL.cpp:2093] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog \
thread terminated with exception: CUDA error: an illegal memory access was encountered
terminate called after throwing an instance of 'c10::DistBackendError'
Fatal Python error: Aborted
""",
    "killed": "step 7\n",
}


@pytest.mark.parametrize(
    ("log", "expected"), [("peer", True), ("absent", True), ("own", False), ("killed", False)]
)
def test_a_rank_that_nccl_aborted_for_another_one_is_not_the_cause(log, expected):
    assert died_of_lost_peer(OF_NCCL[log]) is expected
