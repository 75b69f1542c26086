"""Paths that cannot be looked up, and the folders of a user who has no home."""

import pwd
from pathlib import Path

import pytest

from clustertrain.errors import JobError
from clustertrain.job.site import site_path
from clustertrain.node.interpreter import interpreter_file
from clustertrain.node.user_folders import cache_folder, known_runs_folder


def test_a_uid_without_an_entry_and_without_home_has_the_root_folder_as_its_home(monkeypatch):
    def no_entry(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "CLUSTERTRAIN_SITE"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path("/.cache/clustertrain")
    assert known_runs_folder() == Path("/.local/state/clustertrain/runs")
    assert site_path() is None


def test_a_path_that_cannot_be_looked_up_is_refused():
    """As one in a folder of another user; root has none, but names that are too long."""
    with pytest.raises(JobError, match=r"does not exist on .*\nGive the path of a Python"):
        interpreter_file(f"/{'a' * 300}/bin/python")
