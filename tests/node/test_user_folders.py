"""The folders of a user who has no home: a container's uid without an entry, and without HOME."""

import pwd
from pathlib import Path

from clustertrain.job.site import site_path
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
