"""Two independent S3 servers on loopback: moto's, and versitygw, which keeps real files.

    def test_it(s3):                     runs on both; `s3` is a bucket of the test's own
        open_store(s3.location("runs"))
        s3.client().list_objects_v2(Bucket=s3.bucket)

The credentials are in the environment while a test has a bucket, and nothing leads to Amazon from there.
versitygw is found in $CLUSTERTRAIN_VERSITYGW or beside the Python that runs the tests, where `make test` puts
it; its tests are marked s3 and skipped without it.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from clustertrain.storage.location import Location
from support.waiting import wait_until

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "clustertrain-tests",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_DEFAULT_REGION": "us-east-1",
}
_OTHERS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION")
_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_START_S = 60.0


@dataclass(frozen=True)
class Bucket:
    """A bucket on one of the servers."""

    server: str
    endpoint: str
    bucket: str
    retry_s: float = 60.0

    def location(self, prefix: str = "", **options) -> Location:
        """Of a prefix in the bucket; `endpoint=proxy.endpoint` goes through a proxy."""
        options = {"endpoint": self.endpoint, "region": "us-east-1", "retry_s": self.retry_s, **options}
        return Location(f"s3://{self.bucket}/{prefix}", **options)

    def through(self, endpoint: str, **options) -> "Bucket":
        return replace(self, endpoint=endpoint, **options)

    def client(self):
        """A client that goes to the server itself."""
        from clustertrain.storage.s3_client import connect

        return connect(self.location())

    def all_keys(self) -> list[str]:
        answer = self.client().list_objects_v2(Bucket=self.bucket)
        return [entry["Key"] for entry in answer.get("Contents", [])]

    def uploads(self) -> list[str]:
        """Keys of the multipart uploads that were neither completed nor aborted."""
        answer = self.client().list_multipart_uploads(Bucket=self.bucket)
        return [upload["Key"] for upload in answer.get("Uploads", [])]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    pytest.importorskip("moto.server", reason="moto[s3] and flask are not installed")
    process = subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        port = process.stdout.readline().strip()
        assert port, "moto did not start"
        yield f"http://127.0.0.1:{port}"
        process.kill()


def versitygw() -> str:
    """Where the program is; skips the test where it is not."""
    beside = Path(sys.executable).parent / "versitygw"
    binary = os.environ.get("CLUSTERTRAIN_VERSITYGW") or (str(beside) if beside.exists() else None)
    if binary is None:
        pytest.skip("there is no versitygw: `make test` builds it where there is Go")
    return binary


class Versitygw:
    """A server over a folder of its own. It may be killed, and started again at the same port."""

    def __init__(self, folder: Path) -> None:
        self._binary, self._folder = versitygw(), folder
        for name in ("root", "sidecar"):  # not every file system has the attributes that it would use else
            (folder / name).mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        command = [self._binary, "--port", f"127.0.0.1:{self._port}", "--quiet", "posix"]
        command += ["--sidecar", str(self._folder / "sidecar"), str(self._folder / "root")]
        environment = {
            "ROOT_ACCESS_KEY": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        }
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  one call of libc, and nothing is left by a killed pytest
            )
        wait_until(self._answers, _START_S, (self._folder / "log").read_text)

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"versitygw ended: {(self._folder / 'log').read_text()}"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            return True
        return False

    def bucket(self, name: str) -> Bucket:
        """A new bucket. The credentials must be in the environment (aws_environment)."""
        made = Bucket("versitygw", self.endpoint, name)
        made.client().create_bucket(Bucket=name)
        return made

    def __enter__(self) -> "Versitygw":
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self._folder)


@pytest.fixture(scope="session")
def versitygw_endpoint(tmp_path_factory) -> Iterator[str]:
    with Versitygw(tmp_path_factory.mktemp("versitygw")) as server:
        yield server.endpoint


@pytest.fixture
def aws_environment(monkeypatch) -> dict[str, str]:
    """Credentials for both servers, and no way to Amazon; also what a child process needs."""
    for name in _OTHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return ENVIRONMENT


def _bucket(server: str, request: pytest.FixtureRequest) -> Bucket:
    request.getfixturevalue("aws_environment")
    endpoint = request.getfixturevalue(f"{server}_endpoint")
    made = Bucket(server, endpoint, f"test-{uuid.uuid4().hex[:16]}")
    made.client().create_bucket(Bucket=made.bucket)
    return made


SERVERS = [pytest.param("moto", marks=pytest.mark.slow), pytest.param("versitygw", marks=pytest.mark.s3)]


@pytest.fixture(params=SERVERS)
def s3(request) -> Bucket:
    """A new bucket, on each of the two servers in turn."""
    return _bucket(request.param, request)


@pytest.fixture
def moto_s3(request) -> Bucket:
    """A new bucket on moto's server, which checks neither signatures nor Content-MD5."""
    return _bucket("moto", request)


@pytest.fixture
def versitygw_s3(request) -> Bucket:
    """A new bucket on versitygw, which checks both. Mark the test s3."""
    return _bucket("versitygw", request)
