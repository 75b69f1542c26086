"""What may pass, what will not, and how long it is tried. Against real faults: test_s3_store.py."""

import os

import pytest
from botocore import exceptions as botocore
from botocore.parsers import ResponseParserError
from urllib3.exceptions import IncompleteRead, ProtocolError

from clustertrain.errors import StorageError
from clustertrain.storage.location import Location
from clustertrain.storage.s3_client import connect, persistently

HERE = Location("s3://bucket/p", endpoint="http://127.0.0.1:1", region="eu", retry_s=60)


def refusal(status: int, code: str, message: str = "said") -> botocore.ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.ClientError(answer, "PutObject")


@pytest.mark.parametrize(
    "error",
    [
        refusal(400, "RequestTimeout"),
        refusal(400, "BadDigest"),
        refusal(400, "IncompleteBody"),
        refusal(400, "Throttling"),
        refusal(409, "ConditionalRequestConflict"),
        botocore.ConnectTimeoutError(endpoint_url="x"),
        botocore.ResponseStreamingError(error="x"),
        botocore.SSLError(endpoint_url="x", error="EOF occurred in violation of protocol"),
        ProtocolError("x", IncompleteRead(1, 2)),
        ResponseParserError("half an answer"),
        ConnectionResetError(),
        TimeoutError(),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:60],
)
def test_transient_errors_are_retried(error):
    faults = [error, error]

    def request() -> str:
        if faults:
            raise faults.pop()
        return "answer"

    assert persistently(HERE, "GET", "p/a", request, pause=lambda seconds: None) == "answer"


@pytest.mark.parametrize(
    "error",
    [
        refusal(409, "ObjectParentIsFile"),
        refusal(501, "NotImplemented"),
        refusal(507, "507"),
        botocore.TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed"),
        PermissionError(13, "Permission denied", "/var/run/secrets/token"),  # AWS_WEB_IDENTITY_TOKEN_FILE
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:60],
)
def test_permanent_errors_end_at_once(error):
    tries = []

    def request() -> None:
        tries.append(1)
        raise error

    with pytest.raises(StorageError, match=r"PUT s3://bucket/p/a at http://127.0.0.1:1") as caught:
        persistently(HERE, "PUT", "p/a", request, pause=lambda seconds: pytest.fail("it waited"))
    assert len(tries) == 1
    assert str(caught.value).count("\n") == 1


def test_pauses_grow_and_what_a_pause_raises_ends_the_tries():
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            raise InterruptedError

    def request() -> None:
        raise refusal(503, "SlowDown")

    with pytest.raises(InterruptedError):
        persistently(HERE, "PUT", "p/a", request, pause=pause)
    assert pauses[0] <= 0.5
    assert all(10 <= seconds <= 20 for seconds in pauses[6:])
    assert 600 / max(pauses) >= 30  # a storm of ten minutes is met with many tries


@pytest.mark.slow
def test_a_client_is_shared_in_a_process_and_not_with_a_child(aws_environment):
    mine = connect(HERE)
    assert connect(Location("s3://other", endpoint=HERE.endpoint, region="eu")) is mine
    assert connect(Location("s3://other", endpoint=HERE.endpoint, region="us")) is not mine
    pid = os.fork()
    if pid == 0:
        os._exit(0 if connect(HERE) is not mine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "minio:9000"},
        {"region": "eu west"},
        {"profile": "missing"},
        {"profile": "talks"},
        {"profile": "nope"},
    ],
    ids=str,
)
def test_a_client_that_cannot_be_made_says_why(aws_environment, tmp_path, monkeypatch, options):
    processes = {"missing": "/not/there", "talks": "echo no"}
    profiles = [f"[profile {name}]\ncredential_process = {line}\n" for name, line in processes.items()]
    (tmp_path / "config").write_text("".join(profiles))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StorageError, match=r"cannot be reached: .+\n.*never from the job file"):
        connect(Location("s3://b", **options))
