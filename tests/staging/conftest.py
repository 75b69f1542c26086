"""What the tests of downloads share."""

import pytest

from clustertrain.staging import retries


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(retries, "BACKOFF_S", 0.0)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "part").mkdir()
    return tmp_path / "part"
