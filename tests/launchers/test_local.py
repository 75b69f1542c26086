"""What is decided before anything starts: may it run, with how many workers. Whole runs: tests/whole."""

import os

import pytest

from clustertrain.claims import claim_attempt
from clustertrain.errors import ClusterError, JobError, StorageError
from clustertrain.jobfile import dump_job, parse_job
from clustertrain.launchers import local
from clustertrain.launchers.local import Options, _asks_for_more, _world_size, run_local
from clustertrain.result import Result, write_result
from clustertrain.run_dir import RunDir
from shelves import shelf_at


class Said:
    """A screen that keeps what it is told."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def show(self, records):
        raise AssertionError("nothing may start here")

    def close(self):
        """Nothing is open."""


@pytest.fixture
def job(tmp_path):
    def make(**changes):
        sections = {
            "name": "a",
            "task": "m:T",
            "train": {"epochs": 2, "batch_size": 8},
            "storage": str(tmp_path / "runs"),
            "code": str(tmp_path),
            **changes,
        }
        import yaml

        return parse_job(yaml.safe_dump(sections), "job.yaml")

    return make


def finished(job, state="done", cause="finished"):
    """The run of a job, as an attempt that has ended left it."""
    run = RunDir.newest(job.storage.uri, job.name)
    attempt = claim_attempt(run, world_size=1)
    for key in (run.job_key, f"{attempt.key}/job.yaml"):
        run.store.write_atomic(key, dump_job(job).encode())
    write_result(attempt, Result(state, cause, 0, step=10))
    return run


def test_a_finished_run_is_left_as_it_is(job):
    run, said = finished(job()), Said()
    _, result = run_local(job(), Options(), said)
    assert (result.state, result.step) == ("done", 10)
    assert [a.n for a in run.attempts()] == [1]
    assert "--fresh" in said.lines[0]


def test_fewer_epochs_of_a_finished_run_train_nothing(job):
    finished(job())
    _, result = run_local(job(train={"epochs": 1, "batch_size": 8}), Options(), Said())
    assert result.state == "done"


def test_more_epochs_ask_for_more(job):
    assert _asks_for_more(job(), job(train={"epochs": 3, "batch_size": 8}))
    assert not _asks_for_more(job(), job())


def test_another_job_of_the_name_is_refused_with_the_difference(job):
    finished(job())
    with pytest.raises(JobError) as caught:
        run_local(job(train={"epochs": 2, "batch_size": 8, "seed": 7}), Options(), Said())
    assert "train.seed: 0 → 7" in str(caught.value)
    assert "--fresh" in str(caught.value)


def test_a_run_that_lives_is_refused_with_its_pid(job):
    run = RunDir.newest(job().storage.uri, "a")
    claim_attempt(run, world_size=1)  # by this very process, which lives
    with pytest.raises(ClusterError) as caught:
        run_local(job(), Options(), Said())
    assert f"pid {os.getpid()}" in str(caught.value)
    assert caught.value.exit_code == 3


def test_too_few_cpus_are_an_arithmetic(job, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ClusterError) as caught:
        run_local(job(resources={"workers": 5}), Options(), Said())
    assert "5 workers × 1 CPUs = 5 CPUs, and this machine has 2" in str(caught.value)
    assert "cpus_per_worker to 0.4" in str(caught.value)
    assert RunDir.newest(job().storage.uri, "a").attempts() == []


def test_a_range_of_workers_takes_what_fits(job, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    elastic = job(resources={"workers": [1, 8]}, train={"epochs": 2, "global_batch_size": 8})
    run = RunDir.newest(elastic.storage.uri, "a")
    assert (
        _world_size(run, elastic, Options()) == 2
    )  # 8 samples divide by 1, 2, 4 and 8; 3 CPUs hold 2 of these


def checkpoint_of(job, workers, tmp_path):
    from clustertrain.checkpoint_writer import Retention, Writer

    folder = tmp_path / "runs" / "a" / "g1" / "checkpoints"
    progress = {
        "step": 1,
        "epoch": 0,
        "samples_seen": 8,
        "world_size": workers,
        "metrics": {},
        "reason": "steps",
    }
    Writer(shelf_at(folder), 1, 0, "0" * 64, {}, Retention(), lambda: True).commit({}, progress)


def test_another_world_size_needs_consent(job, tmp_path):
    checkpoint_of(job(), 3, tmp_path)
    run = RunDir.newest(job().storage.uri, "a")
    with pytest.raises(JobError) as caught:
        _world_size(run, job(), Options())
    assert "newest checkpoint" in str(caught.value)
    assert "--allow-world-size-change" in str(caught.value)
    assert _world_size(run, job(), Options(allow_world_size_change=True)) == 1
    assert _world_size(run, job(resources={"workers": [1, 2]}), Options()) in (1, 2)


def test_fresh_begins_a_generation_and_keeps_the_old_one(job, monkeypatch):
    finished(job())
    ended = Result("done", "finished", 0)
    monkeypatch.setattr(local, "_supervise", lambda attempt, job, screen: ended)  # a fake: nothing starts
    run, result = run_local(job(train={"epochs": 9, "batch_size": 4}), Options(fresh=True), Said())
    assert result is ended
    assert (run.generation, [a.n for a in run.attempts()]) == (2, [1])
    assert [a.n for a in run.at(1).attempts()] == [1]
    assert "epochs: 2" in run.at(1).store.read_or_none(run.at(1).job_key).decode()


def test_storage_below_a_file_is_refused(job, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught:
        run_local(job(storage=str(tmp_path / "file" / "runs")), Options(), Said())
    assert str(tmp_path / "file") in str(caught.value)
    assert str(os.getuid()) in str(caught.value)
