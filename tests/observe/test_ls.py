"""`ls`: the args and a metric of each run, as a table and as JSON; runs that cannot be read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.job.file import load_job, parse_job
from clustertrain.launchers.known_runs import KnownRun, record_known_run
from clustertrain.observe import run_table
from clustertrain.observe.status import status_by_files
from clustertrain.run_files import claims
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.claim import ResumePoint
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from clustertrain.run_files.streams.event_log import EventLog
from support.sample_records import sample_submission

KEEP_BEST = {"keep_best": {"metric": "accuracy", "mode": "max"}}


@pytest.fixture
def ls(tmp_path, monkeypatch):
    """Calls `clustertrain ls` in an empty folder; returns click's result."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["ls", *arguments])


def job_text(name, lr, **checkpoint):
    sections = {
        "name": name,
        "task": "m:T",
        "args": {"lr": lr, "model": {"depth": 3}},
        "train": {"epochs": 2, "batch_size": 8},
        "checkpoint": checkpoint or None,
    }
    return yaml.safe_dump(sections)


def trained(name, lr, accuracies, storage="runs", **checkpoint):
    """A run that has ended, with an evaluation of each accuracy."""
    run = RunDir.newest(storage, name)
    attempt = claim_attempt(run)
    record_job(attempt, parse_job(job_text(name, lr, **checkpoint), "job.yaml"))
    attempt.restart(0).plan.write(ResumePoint(None, 0, 1))
    log = EventLog(attempt.restart(0).metrics)
    for step, accuracy in enumerate(accuracies, 1):
        log.write("train", step=step, loss=9.0)
        log.write("eval", step=step, loss=1 / step, accuracy=accuracy)
    write_result(attempt, Result("done", "finished", 0, step=len(accuracies)))
    return run


def test_ls_json_has_args_and_metrics(ls):
    trained("a", 0.1, [0.5, 0.9, float("nan")], **KEEP_BEST)
    result = ls("runs", "--json", "--args", "lr", "--args", "train.batch_size", "--metric", "accuracy,loss")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert row == {
        "name": "a",
        "state": "done",
        "step": 3,
        "attempt": 1,
        "args.lr": 0.1,
        "train.batch_size": 8,
        "metrics.accuracy.last": None,
        "metrics.accuracy.best": 0.9,
        "metrics.loss.last": 1 / 3,
        "metrics.loss.best": None,
        "ettr": None,
        "device_hours": None,
        "where": "this machine",
        "text": "",
        "format_version": 1,
    }
    assert "note: the best loss is unknown" in result.stderr


def test_a_column_without_a_value_is_a_note(ls):
    trained("a", 0.1, [0.5])
    notes = ls("--args", "lrr", "--metric", "acuracy,accuracy").stdout.splitlines()[2:]
    assert notes[0] == "note: no run has args.lrr"
    assert notes[1].startswith("note: no run has measured acuracy")
    assert notes[2].endswith("use --metric accuracy:max or --metric accuracy:min")


def test_a_run_that_is_only_submitted_has_args(ls):
    run = RunDir.newest("runs", "a")
    run.submission("slurm", "12").write(sample_submission("12"))
    run.store.write_atomic(run.snapshot_job_key("0" * 16), job_text("a", 0.3).encode())
    assert "0.3" in ls("--args", "lr", "--metric", "accuracy").stdout.splitlines()[1].split()


def test_a_run_in_a_cluster_has_args_and_is_found_by_its_job_file(ls, tmp_path):
    for name in ("job", "other"):
        (tmp_path / f"{name}.yaml").write_text(job_text(name, 0.4) + f"storage: runs-of-{name}\n")
        job = load_job(f"{name}.yaml")
        known = KnownRun.of(job, f"{name}.yaml", "kubernetes", "Kubernetes namespace ml")
        assert record_known_run(replace(known, storage_there="/storage/runs")) is None
    _, row = ls("job.yaml", "--args", "lr").stdout.splitlines()
    assert row.split()[:4] == ["job", "unknown", "-", "0.4"]
    assert f"`clustertrain status {tmp_path}/runs-of-job/job` reads" in row
    assert "Kubernetes namespace ml" in row
    assert [line.split()[0] for line in ls().stdout.splitlines()[1:3]] == ["job", "other"]


@pytest.mark.parametrize(
    ("place", "storage"),
    [("nothing", "nothing"), ("empty", "empty"), ("job.yaml", "runs-of-job"), ("runs/a", "runs/a")],
)
def test_a_place_without_a_run_is_an_error(ls, tmp_path, place, storage):
    trained("a", 0.1, [0.5])
    (tmp_path / "empty").mkdir()
    (tmp_path / "job.yaml").write_text(job_text("job", 0.1) + "storage: runs-of-job\n")
    for to in ((), ("--to", "local")):
        result = ls(place, *to)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{tmp_path}/{storage} contains no run" in result.stderr
        assert f"Of one run: `clustertrain status {place}`" in result.stderr
        assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize("arguments", [("nothing",), ("--args", "lr")])
def test_the_ray_jobs_of_a_namespace_have_neither_a_folder_nor_columns(ls, arguments):
    result = ls("--to", "kubernetes", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")


# ------------------------------------------------------------- runs that an earlier release wrote


SAMPLE = Path(__file__).parents[1] / "fixtures" / "sample_runs" / "storage"


@pytest.fixture
def attempt(tmp_path):
    return RunDir.newest(str(shutil.copytree(SAMPLE, tmp_path / "runs")), "finished").attempt(1)


@pytest.fixture
def of_a_later_version(attempt, monkeypatch):
    """Another run there, whose row needs its job."""
    monkeypatch.setattr(claims, "heartbeat_period_s", lambda run: 0.05)  # whether the run lives
    run = RunDir.newest(attempt.run.store.location, "stopped").attempt(1)
    for key in (run.job_key, run.run.job_key):
        with run.run.store.local_folder(key).open("a") as job:
            job.write("of_a_later_version: 1\n")
    run.path.joinpath("result.json").unlink()
    run.restart(0).metrics.unlink()
    return run.run


def test_a_run_that_cannot_be_read_costs_no_second_question_to_its_scheduler(attempt, of_a_later_version):
    asked = []

    def statuses(runs):
        asked.append(len(runs))
        return [*map(status_by_files, runs)]

    rows, _ = run_table.rows_of([attempt.run, of_a_later_version], statuses)
    assert ([row.state for row in rows], asked) == (["done", "unknown"], [2])


def test_a_sweep_is_listed_although_a_point_cannot_be_read(attempt, of_a_later_version):
    storage = attempt.run.store.location.uri
    of_a_later_version.store.local_folder(of_a_later_version.name).rename(f"{storage}/finished-2")
    attempt.run.store.local_folder(attempt.run.name).rename(f"{storage}/finished-1")
    listed = CliRunner().invoke(main, ["ls", storage, "--sweep", "finished"])
    assert listed.exit_code == 0 and "unknown key 'of_a_later_version'" in listed.stdout
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:3]] == [
        ["finished-1", "done"],
        ["finished-2", "unknown"],
    ]
