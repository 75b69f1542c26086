"""What the tests of downloads share."""

import pytest

from clustertrain.staging import fetch, source
from support.web_server import serving


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(source, "BACKOFF_S", 0.0)


@pytest.fixture
def half_a_second_of_retries(monkeypatch):
    monkeypatch.setattr(fetch, "WEB_RETRY_S", 0.5)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "part").mkdir()
    return tmp_path / "part"


@pytest.fixture
def into(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def web(request):
    """A server with ranges; its file is the BODY of the tests."""
    with serving() as web:
        web.files["/f"] = request.module.BODY
        web.accepts_ranges = True
        yield web
