"""What the tests of downloads share."""

import pytest

from clustertrain.staging import source
from clustertrain.staging.source import Source


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(source, "BACKOFF_S", 0.0)


@pytest.fixture
def half_a_second_of_retries(monkeypatch):
    monkeypatch.setattr(Source, "retry_s", 0.5)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "part").mkdir()
    return tmp_path / "part"
