"""The paths of a run: one object, generations, attempts, small files."""

import pytest

from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.provenance import CodeSource
from clustertrain.run_files.records.requests import StopRequest
from clustertrain.run_files.records.scheduler import SchedulerJob
from clustertrain.run_files.run_address import RunAddress, addresses_of
from clustertrain.storage import Location, PosixStore
from support.sample_records import sample_claim, sample_restart_claim


@pytest.fixture
def run(tmp_path):
    return RunDir.newest(str(tmp_path / "runs"), "mnist")


def test_attempts_count_as_numbers(run):
    for n in (1, 2, 9, 10):
        run.attempt(n).claim.create(sample_claim())
    for odd in (".11", "x", "11.tmp", "-1"):
        run.attempt(1).run.store.write_atomic(f"{run.key}/attempts/{odd}/claim.json", b"{}")
    assert [attempt.n for attempt in run.attempts()] == [1, 2, 9, 10]
    assert run.newest_attempt() == run.attempt(10)


def test_the_attempt_after_another_is_the_newest_that_was_claimed(run, monkeypatch):
    for n in (2, 9, 10):
        run.attempt(n).claim.create(sample_claim())
    run.attempt(11).stop.write(StopRequest("user"))  # its folder is there, and no claim
    assert [run.attempt_after(n) for n in (1, 9)] == [run.attempt(10), run.attempt(10)]
    monkeypatch.setattr(PosixStore, "read_or_none", None)
    assert run.attempt_after(11) is None


def test_restarts_count_from_zero(run):
    attempt = run.attempt(1)
    assert attempt.restarts() == []
    assert attempt.newest_restart() is None
    for restart in (0, 1, 10):
        attempt.restart(restart).claim.create(sample_restart_claim())
    assert [restart.number for restart in attempt.restarts()] == [0, 1, 10]
    assert attempt.newest_restart() == attempt.restart(10)


def test_a_generation_that_no_scheduler_has_accepted_does_not_hide_the_one_before(run, tmp_path):
    run.attempt(1).claim.create(sample_claim())
    refused = run.fresh()
    refused.snapshot_source("digest").write(CodeSource())
    assert RunDir.newest(str(tmp_path / "runs"), "mnist") == run
    refused.submission("slurm", "7").create(SchedulerJob("slurm", "7", "digest", 1.0, {}, ""))
    assert RunDir.newest(str(tmp_path / "runs"), "mnist") == refused


def test_generations_count_as_numbers(run, tmp_path):
    for generation in (2, 9, 10):
        run.at(generation).attempt(1).claim.create(sample_claim())
    (tmp_path / "runs/mnist/garbage").mkdir()
    (tmp_path / "runs/mnist/g").mkdir()
    assert RunDir.newest(str(tmp_path / "runs"), "mnist").generation == 10


@pytest.mark.parametrize("storage", ["/data/runs", "s3://bucket", "s3://bucket/team/runs"])
@pytest.mark.parametrize("end", ["", "/"])
def test_every_folder_that_a_run_prints(storage, end):
    at = Location(storage)
    assert addresses_of(f"{storage}/digits{end}") == [RunAddress(at, "digits")]
    places = {"g1": (1, None), "g12": (12, None), "g2/attempts": (2, None), "g2/attempts/3": (2, 3)}
    for folder, place in places.items():
        assert addresses_of(f"{storage}/digits/{folder}{end}")[-1] == RunAddress(at, "digits", *place)


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
