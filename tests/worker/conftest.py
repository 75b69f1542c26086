import pytest

import fork_servers
from clustertrain import variables
from clustertrain.run.folder import RunDir


@pytest.fixture(scope="session")
def fork_socket():
    """Of a fork server beside the tests of this folder, as beside a rank."""
    with fork_servers.fork_server(OMP_NUM_THREADS="1") as (_, socket):
        yield socket


@pytest.fixture
def fork_server(fork_socket, monkeypatch):
    """This process has the environment of a rank beside a fork server."""
    monkeypatch.setenv(variables.FORK_SERVER, fork_socket)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(params=["posix", pytest.param("moto", marks=pytest.mark.slow)])
def attempt(request, tmp_path, monkeypatch):
    """An attempt of a run in a folder, and of one on S3."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "posix":
        return RunDir.newest(str(tmp_path / "runs"), "digits").attempt(1)
    return RunDir.newest(request.getfixturevalue("moto_s3").location("runs"), "digits").attempt(1)
