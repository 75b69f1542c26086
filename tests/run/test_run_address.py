"""Each folder of a run names that run."""

import pytest

from clustertrain.run.folder import RunDir
from clustertrain.run.run_address import RunAddress, addresses_of
from clustertrain.storage import Location


@pytest.mark.parametrize("storage", ["/data/runs", "s3://bucket", "s3://bucket/team/runs"])
@pytest.mark.parametrize("end", ["", "/"])
def test_every_folder_that_a_run_prints(storage, end):
    run = RunDir.newest(storage, "digits") if storage.startswith("/") else None
    at = Location(storage)
    assert addresses_of(f"{storage}/digits{end}") == [RunAddress(at, "digits")]
    for folder, generation, attempt in (
        ("g1", 1, None),
        ("g12", 12, None),
        ("g2/attempts", 2, None),
        ("g2/attempts/3", 2, 3),
    ):
        assert addresses_of(f"{storage}/digits/{folder}{end}")[-1] == RunAddress(
            at, "digits", generation, attempt
        )
    if run is not None:
        for uri in (run.uri, run.attempt(7).uri, run.store.uri(run.attempts_key)):
            assert addresses_of(uri)[-1].run() == run


def test_a_path_starts_at_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert addresses_of("runs/digits") == [RunAddress(Location(f"{tmp_path}/runs"), "digits")]
    (tmp_path / "runs/digits/g2/attempts/1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "runs/digits/g2/attempts/1")
    assert addresses_of(".")[-1] == RunAddress(Location(f"{tmp_path}/runs"), "digits", 2, 1)
    assert addresses_of("../..")[-1] == RunAddress(Location(f"{tmp_path}/runs"), "digits", 2)
    assert addresses_of("../../..") == [RunAddress(Location(f"{tmp_path}/runs"), "digits")]


def test_an_absolute_path_is_read_in_a_folder_that_was_removed(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path / "old")
    (tmp_path / "old").rmdir()
    assert addresses_of("/runs/digits") == [RunAddress(Location("/runs"), "digits")]
