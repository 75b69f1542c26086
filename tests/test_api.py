"""Runs in Python, on run folders as a launcher leaves them; tests/whole/test_python.py trains."""

import json
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import clustertrain
from clustertrain import api
from clustertrain.cli.main import main
from clustertrain.errors import EXIT_JOB, ClusterTrainError, JobError
from clustertrain.job.file import load_job, sets_of
from clustertrain.launchers.launcher import Launcher
from clustertrain.observe.checkpoints import SavedCheckpoint
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.claim import ResumePoint
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.storage.record_file import typed
from support.commands import ran
from support.sample_checkpoints import save
from support.sample_records import sample_restart_claim

JOB = {
    "name": "a",
    "task": "m:T",
    "train": {"epochs": 2, "batch_size": 8},
    "checkpoint": {"keep_best": {"metric": "accuracy", "mode": "max"}},
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with a job file; no scheduler on PATH."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text("from clustertrain import Task\nclass T(Task):\n    ...\n")
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))  # JSON is YAML
    return tmp_path


@pytest.fixture
def prepared(folder):
    """A run with two checkpoints, the first one the best, and a curve whose step 20 was repeated."""
    run = RunDir.newest(str(folder / "runs"), "a")
    attempt = claim_attempt(run)
    record_job(attempt, load_job("job.yaml"))
    for step in (10, 20):
        state = {"model": {"w": torch.full((2,), float(step))}}
        save(run.checkpoints, step, state, accuracy=1 / step)
    for number, begins, steps in ((0, 0, (10, 20)), (1, 10, (20,))):
        restart = attempt.restart(number)
        restart.claim.create(sample_restart_claim())
        restart.plan.write(ResumePoint(None, begins, 2))
        for step in steps:
            EventLog(restart.metrics).write("train", step=step, loss=float(number))
    EventLog(attempt.events).write("note", text="a note")
    return attempt


def command(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_a_run_is_what_its_files_say(prepared):
    run = clustertrain.open("job.yaml")
    assert run.status().state == "waiting"
    assert [(row["step"], row["loss"]) for row in run.metrics()] == [(10, 0.0), (20, 1.0)]
    assert [(each.step, each.workers, each.metrics) for each in run.checkpoints()] == [
        (10, 2, {"accuracy": 0.1}),
        (20, 2, {"accuracy": 0.05}),
    ]
    assert (run.best.name, run.best.metric, run.best.value) == ("00000010-1.0", "accuracy", 0.1)
    assert any("a note" in line for line in run.logs())
    assert [row["name"] for row in clustertrain.runs()] == ["a"]


def test_each_checkpoint_can_be_loaded(prepared):
    run = clustertrain.open("runs/a")
    for checkpoint in (run.best, run.checkpoints()[0], "00000010-1.0"):
        assert run.load(checkpoint)["w"].tolist() == [10.0, 10.0]
    assert run.load()["w"].tolist() == [20.0, 20.0]
    with pytest.raises(JobError, match="contains no checkpoint 'x'"):
        run.load("x")


def test_wait_returns_the_end_of_a_run_and_raises_nothing_for_a_failure(prepared, monkeypatch, capfd):
    monkeypatch.setattr(api, "POLL_S", 0.05)
    run, told = clustertrain.open("job.yaml"), []
    with pytest.raises(TimeoutError, match="has not ended within"):
        run.wait(timeout_s=0.1)
    end = Result("failed", "error", 1, text="E: no", step=20)
    threading.Timer(0.2, write_result, [prepared, end]).start()
    status = run.wait(echo=told.append)
    assert (status.state, status.text, status.exit_code, status.step) == ("failed", "E: no", 1, 20)
    assert told == ["waiting (workers)", "failed (error): E: no"]
    assert capfd.readouterr() == ("", "")


def test_wait_is_for_the_run_that_the_job_file_meant_at_first(prepared, folder, monkeypatch):
    monkeypatch.setattr(api, "POLL_S", 0.05)

    def echo(line):
        if line == "waiting (workers)":
            (folder / "job.yaml").write_text(json.dumps(JOB | {"name": "b"}))
            write_result(prepared, Result("done", "finished", 0, step=20))

    assert clustertrain.open("job.yaml").wait(echo=echo).state == "done"


def test_stop_requests_it_without_a_word(prepared, capfd):
    run = clustertrain.open("job.yaml")
    run.stop(wait=False)
    assert prepared.stop.read().cause == "user"
    assert capfd.readouterr() == ("", "")


def test_runs_are_rows_for_a_data_frame(prepared):
    (row,) = clustertrain.runs("runs", args="train.batch_size", metrics=["loss:min"])
    assert row["train.batch_size"] == 8
    assert (row["metrics.loss.last"], row["metrics.loss.best"]) == (1.0, 0.0)
    printed = command("ls", "runs", "--json", "--args", "train.batch_size", "--metric", "loss:min").stdout
    assert json.loads(printed) == [{**row, "format_version": 1}]


def submitted(monkeypatch, calls):
    """Lets SLURM accept every job."""

    def submit(self, job, options, echo):
        calls.append((job, options))
        echo("submitted")
        claim_attempt(RunDir.newest(job.storage.location, job.name))

    monkeypatch.setattr(Launcher, "submit", submit)


@pytest.mark.parametrize("given", ["job.yaml", JOB], ids=["file", "mapping"])
def test_a_job_is_submitted_from_a_file_or_a_mapping(given, monkeypatch, folder, capfd):
    calls, told = [], []
    submitted(monkeypatch, calls)
    overrides = {"train.epochs": 3, "name": "b"}
    run = clustertrain.submit(given, "slurm", overrides=overrides, echo=told.append, fresh=True)
    (job, options), *_ = calls
    assert (job.name, job.train.epochs, job.code, options.fresh) == ("b", 3, (str(folder),), True)
    assert run.target == str(folder / "runs" / "b")
    assert run.status().attempt == 1
    assert told == ["submitted"]
    assert capfd.readouterr() == ("", "")


class Numpy(float):
    """As numpy.float64, a float of another type."""


@pytest.mark.parametrize(
    "value",
    [3, 0.1, 1e-7, 1e22, True, None, "1.10", "on", "a: b", "é\n", [1, [2]], {"a": {"b": 1}}],
)
def test_an_override_has_the_value_that_was_given(value):
    (text,) = sets_of({"args.x": value})
    job = load_job({"name": "a", "function": "m:f"}, [text])
    assert job.args["x"] == value
    assert type(job.args["x"]) is type(value)
    assert load_job({"name": "a", "function": "m:f", "args": {"x": value}}) == job


def test_values_of_other_types_are_plain_or_refused(folder):
    job = load_job(
        {"name": "a", "function": "m:f", "storage": folder / "r", "args": {"lr": Numpy(0.5), "t": (1,)}}
    )
    assert job.storage.uri == str(folder / "r")
    assert job.args == {"lr": 0.5, "t": [1]}
    assert load_job(JOB, sets_of({"train.epochs": torch.tensor(4)})).train.epochs == 4
    with pytest.raises(JobError, match="is a set\na job contains text, numbers, lists and mappings"):
        load_job({"name": "a", "args": {"x": {1}}})


def test_a_mistake_in_a_mapping_names_its_key():
    with pytest.raises(JobError) as caught:
        load_job({**JOB, "train": {"epochs": 0, "batch_size": 8}})
    assert str(caught.value).startswith("the job: train.epochs: 0 is not accepted")
    with pytest.raises(JobError, match="did you mean 'epochs'"):
        load_job(JOB, sets_of({"train.epoch": 3}))


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (["submit", "--to", "slurm", "job.yaml"], lambda: clustertrain.submit("job.yaml", "slurm")),
        (
            ["submit", "--to", "slurm", "--set", "train.epochs=x", "job.yaml"],
            lambda: clustertrain.submit("job.yaml", "slurm", overrides={"train.epochs": "x"}),
        ),
        (
            ["run", "--set", "resources.workers=999", "job.yaml"],
            lambda: clustertrain.run("job.yaml", overrides={"resources.workers": 999}),
        ),
        (["status", "nothing"], lambda: clustertrain.open("nothing")),
        (["ls", "nothing"], lambda: clustertrain.runs("nothing")),
    ],
)
def test_an_error_has_the_text_of_the_command_line(arguments, call):
    printed = command(*arguments)
    with pytest.raises(ClusterTrainError) as caught:
        call()
    assert printed.exit_code == caught.value.exit_code
    assert printed.stderr.endswith(f"error: {caught.value}\n")


def test_the_import_is_lazy_and_run_can_be_called_whatever_was_imported_before():
    code = (
        "import sys, clustertrain; assert not {'torch', 'pydantic'} & sys.modules.keys();"
        "import clustertrain.run_files.folder.run_dir as r; assert callable(clustertrain.run) and r.RunDir;"
        "clustertrain.submit; assert callable(clustertrain.run); assert 'torch' not in sys.modules\n"
        "try: clustertrain.run({})\nexcept clustertrain.errors.JobError as error: print(error)"
    )
    done = ran([sys.executable, "-c", code], code=0)
    assert done.stdout.startswith("the job: ")


def printed_json(*arguments):
    printed = command(*arguments, "--json")
    assert printed.exit_code == 0, printed.output
    return [json.loads(line) for line in printed.stdout.splitlines()]


def test_each_command_that_reads_prints_the_same_as_json(prepared, monkeypatch):
    now = time.time()  # until then the ledger books a run that has not ended
    monkeypatch.setattr("clustertrain.observe.ledger.of_run.time", SimpleNamespace(time=lambda: now))
    EventLog(prepared.restart(1).metrics).write("train", step=21, loss=float("nan"))
    run = clustertrain.open("job.yaml")
    (status,) = printed_json("status", "job.yaml")
    assert status == json.loads(run.status().json())
    (checkpoints,) = printed_json("ckpt", "ls", "job.yaml")
    assert [typed(SavedCheckpoint, each) for each in checkpoints] == run.checkpoints()
    records = printed_json("logs", "job.yaml")
    assert {record["kind"] for record in records} == {"note", "train"}
    assert records[-1]["loss"] is None  # it is not finite
    log = prepared.rank_log("host", 0)
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    assert printed_json("logs", "job.yaml", "--rank", "0") == [{"line": "a line", "format_version": 1}]


def test_a_run_that_was_never_started_has_no_attempt_yet():
    (status,) = printed_json("status", "job.yaml")
    assert status["attempt"] is None
    assert command("status", "nothing", "--json").exit_code == EXIT_JOB


def test_the_check_of_the_code_as_json(monkeypatch):
    monkeypatch.setattr("clustertrain.launchers.check._import_and_rehearse", lambda *_, **__: ["a note"])
    (checked,) = printed_json("check", "job.yaml")
    assert checked.keys() == {"seconds", "notes", "format_version"}
    assert checked["notes"] == ["a note"]


def test_data_sets_as_json(folder):
    (folder / "here").mkdir()
    data = {
        "near": {"uri": "here"},
        "gone": {"uri": "gone.bin"},
        "far": {"uri": "https://h.test/x?page=hidden"},
    }
    (folder / "job.yaml").write_text(json.dumps({**JOB, "data": data}))
    (sets,) = printed_json("data", "ls")
    states = {each["name"]: (each["state"], each["where"], each["size_bytes"]) for each in sets}
    assert states == {
        "near": ("in place", str(folder / "here"), None),
        "gone": ("missing", None, None),
        "far": ("absent", None, None),
    }
    assert "hidden" not in sets[2]["source"]
