"""`--grid`: the points of a sweep, and their table."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from clustertrain.cli.grid import points_of
from clustertrain.cli.main import main
from clustertrain.errors import ClusterError, JobError
from clustertrain.job.file import load_job
from clustertrain.launchers.scheduler.interface import Sent
from clustertrain.launchers.slurm.scheduler import SlurmScheduler
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.claim import ResumePoint
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.streams.event_log import EventLog


@pytest.fixture
def job_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text("def f(config): ...")
    sections = {"name": "digits", "function": "m:f", "args": {"lr": 1.0, "seed": 0}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(sections))
    return "job.yaml"


def test_each_combination_is_a_run_of_its_own(job_file):
    points = points_of(job_file, ("resources.workers=2",), ["lr=0.1, 1e-3", "seed=1,2"])
    jobs = [load_job(job_file, sets) for sets in points]
    assert [(job.name, job.args["lr"], job.args["seed"], job.resources.workers) for job in jobs] == [
        ("digits-0-1-1", 0.1, 1, 2),
        ("digits-0-1-2", 0.1, 2, 2),
        ("digits-1e-3-1", 0.001, 1, 2),
        ("digits-1e-3-2", 0.001, 2, 2),
    ]
    (point,) = points_of(job_file, (), ["checkpoint.keep_last=7"])
    assert load_job(job_file, point).checkpoint.keep_last == 7
    assert points_of(job_file, ("a=1",), []) == [("a=1",)]


def test_a_grid_of_a_script_sets_an_option_of_its_args(job_file):
    args = ["--epochs", "1.10", "--lr", "0.5", "--wd=0", "--x", "${CLUSTERTRAIN_CHECKPOINT_DIR}"]
    Path(job_file).write_text(yaml.safe_dump({"name": "s", "script": "m.py", "args": args}))
    points = points_of(job_file, (), ["lr=0.1,1e-2", "args.wd=2", "seed=-1", "resources.workers=2"])
    jobs = [load_job(job_file, sets) for sets in points]
    assert [(job.name, job.resources.workers) for job in jobs] == [("s-0-1-2-1-2", 2), ("s-1e-2-2-1-2", 2)]
    kept = ("--x", "${CLUSTERTRAIN_CHECKPOINT_DIR}")
    assert [job.args for job in jobs] == [
        ("--epochs", "1.10", "--lr", lr, "--wd", "2", *kept, "--seed", "-1") for lr in ("0.1", "1e-2")
    ]
    (point,) = points_of(job_file, ('args=["--lr"]',), ["lr=7"])
    assert load_job(job_file, point).args == ("--lr", "7")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("lr", "--grid lr is not KEY=VALUE,VALUE"),
        ("lr=1,", "is not KEY=VALUE,VALUE"),
        ("name=a,b", "the name of each point follows from its values"),
        ("lr=1,-1", "two points have the name digits-1"),
    ],
)
def test_a_wrong_grid_is_refused_with_its_rule(job_file, option, message):
    with pytest.raises(JobError, match=message):
        points_of(job_file, (), [option])


def test_the_points_do_not_depend_on_one_that_is_refused(job_file, monkeypatch):
    def submit(self, job, script, environment):
        if job.resources.workers == 2:
            raise ClusterError("too many jobs")
        return Sent(f"{job.resources.workers}")

    monkeypatch.setattr(SlurmScheduler, "check", lambda *arguments: ())
    monkeypatch.setattr(SlurmScheduler, "submit", submit)
    monkeypatch.setattr(SlurmScheduler, "query", lambda *arguments: {})
    grid = ["--no-check", "--grid", "resources.workers=1,2,3", job_file]
    done = CliRunner().invoke(main, ["submit", "--to", "slurm", *grid])
    assert (done.exit_code, done.stderr) == (3, "error: digits-2: too many jobs\n")
    assert [line for line in done.stdout.splitlines() if line.startswith("submitted")] == [
        "submitted digits-1 as SLURM job 1",
        "submitted digits-3 as SLURM job 3",
    ]


def test_ls_shows_the_points_of_a_sweep_with_what_differs(job_file):
    for number, sets in enumerate(points_of(job_file, (), ["lr=0.1,0.01"])):
        job = load_job(job_file, sets)
        attempt = claim_attempt(RunDir.newest(job.storage.location, job.name))
        record_job(attempt, job)
        attempt.restart(0).plan.write(ResumePoint(None, 0, 1))
        EventLog(attempt.restart(0).metrics).write("train", step=3, epoch=0, loss=0.5 + number)
        attempt.result.create(Result("done", "finished", 0, step=3, metrics={"loss": 0.5 + number}))
    claim_attempt(RunDir.newest(load_job(job_file).storage.location, "other"))
    done = CliRunner().invoke(main, ["ls", "--sweep", "digits"])
    header, *rows = (line.split() for line in done.output.splitlines())
    assert header[:6] == ["NAME", "STATE", "STEP", "lr", "loss", "best"], done.output
    assert [row[:5] for row in rows] == [
        ["digits-0-01", "done", "3", "0.01", "1.5"],
        ["digits-0-1", "done", "3", "0.1", "0.5"],
    ]
    assert "There is no run letters-" in CliRunner().invoke(main, ["ls", "--sweep", "letters"]).output
