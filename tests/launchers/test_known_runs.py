"""The files of the runs that this user started: private, whole, and never the reason of a failure."""

import json
import os
import stat

import pytest

from clustertrain.job.model import Job
from clustertrain.launchers.known_runs import KnownRun, known_runs, record_known_run


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "clustertrain" / "runs"


def known(tmp_path, name="digits", launcher="slurm", **fields):
    job = Job(name=name, function="m:f", storage=str(tmp_path / "runs"))
    return KnownRun.of(job, "job.yaml", launcher, **fields)


def test_what_was_remembered_comes_back_and_nobody_else_may_look(tmp_path, state):
    run = known(tmp_path, cluster="SLURM cluster sim", job_id="12")
    assert record_known_run(run) is None
    assert known_runs() == ([run], [])
    assert run.where == "SLURM cluster sim, job 12"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_a_later_start_replaces_the_file_and_another_launcher_has_its_own(tmp_path, state):
    record_known_run(known(tmp_path, cluster="sim", job_id="12"))
    record_known_run(known(tmp_path, cluster="sim", job_id="13"))
    record_known_run(known(tmp_path, launcher="local"))
    assert len(list(state.iterdir())) == 2
    assert {(run.launcher, run.job_id) for run in known_runs()[0]} == {("slurm", "13"), ("local", "")}


def test_a_folder_that_cannot_be_written_is_a_note(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert "cannot be written" in record_known_run(known(tmp_path))
    assert known_runs()[0] == []


def newer(path, text):
    path.write_text(json.dumps({**json.loads(text), "format_version": 2}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path, text: path.write_text("{"), "is damaged"),
        (lambda path, text: path.write_bytes(b"\xff\x00"), "is damaged"),
        (newer, "has format 2, and clustertrain "),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_skipped(tmp_path, state, change, reason):
    record_known_run(known(tmp_path))
    (path,) = state.iterdir()
    record_known_run(known(tmp_path, name="other"))
    change(path, path.read_text())
    runs, (note,) = known_runs()
    assert [run.name for run in runs] == ["other"]
    assert str(path) in note
    assert reason in note


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_named_and_skipped(tmp_path, state):
    record_known_run(known(tmp_path))
    (path,) = state.iterdir()
    os.chown(path, 12345, 12345)
    runs, (note,) = known_runs()
    assert runs == []
    assert "belongs to another user" in note
