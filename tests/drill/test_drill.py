"""Drills of real runs."""

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.drill import trial
from clustertrain.drill.plan import FAULTS, DrillPlan
from clustertrain.errors import EXIT_JOB, EXIT_STOPPED
from clustertrain.job.file import load_job
from clustertrain.run.folder import RunDir
from clustertrain.run.records import Result, ResumePoint
from commands import ran
from sample_records import sample_claim

JOBS = Path(__file__).parent / "jobs"
FAULTY = Path(__file__).parent.parent / "whole" / "jobs"


@pytest.fixture
def drilled(tmp_path):
    """Drills a job; returns the report, the lines on stderr, and the storage."""

    def drill(*options, code, workers=1, folder=JOBS, **sections):
        job = {"name": "it", "code": str(folder), "storage": str(tmp_path / "runs"), **sections}
        job["resources"] = {"workers": workers, "cpus_per_worker": 0.5}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        argv = [sys.executable, "-m", "clustertrain.cli", "drill", str(tmp_path / "job.yaml"), *options]
        done = ran([*argv, "--json"], code=code)
        return json.loads(done.stdout), tmp_path / "runs"

    return drill


TASK = {"train": {"epochs": 3, "batch_size": 4}}


@pytest.mark.run
def test_a_training_that_resumes_is_exact(drilled):
    report, storage = drilled(
        "--faults", "rank,stop", code=0, workers=2, folder=FAULTY, task="faulty:Faulty", **TASK
    )
    assert report["exact"], report
    rank, stop = report["outcomes"]
    assert rank["caused"] and "from memory" in rank["resumed"] and rank["lost_s"] > 0
    assert stop["caused"] and "from memory" not in stop["resumed"] and stop["lost_steps"] == 0
    assert all(number > 20 for number in report["compared"].values())
    assert report["kept"] == [] and list(storage.iterdir()) == []


@pytest.mark.run
def test_a_schedule_of_its_own_is_named(drilled):
    report, storage = drilled("--faults", "stop", code=1, task="drilled:OwnSchedule", **TASK)
    (stop,) = report["outcomes"]
    first = stop["differences"][0]
    resumed = int(stop["resumed"].split(",")[0].removeprefix("step "))
    # The optimizer's state has the rate of the first step; `on_step` sets the next one.
    assert (first["where"], first["what"]) == (f"step {resumed + 2}", "lr"), stop
    assert "scheduler" in stop["cause"]
    assert {Path(each).name for each in report["kept"]} == {each.name for each in storage.iterdir()}


@pytest.mark.run
@pytest.mark.parametrize(
    ("args", "code", "cause"),
    [
        (["--resume"], 0, ""),
        pytest.param(
            *(["--resume", "--forget"], 1, "the script's checkpoint"),
            marks=pytest.mark.nightly,  # in CI: test_compare.py, and a schedule of its own
        ),
    ],
)
def test_a_script_is_known_by_its_losses_and_files(drilled, args, code, cause):
    report, _ = drilled("--faults", "rank", code=code, script="looped.py", args=args)
    (rank,) = report["outcomes"]
    assert rank["caused"] and rank["exact"] == (code == 0), rank
    assert cause in rank["cause"] and rank["lost_s"] is not None
    assert report["compared"]["tensors and numbers of checkpoints"] > 5


@pytest.mark.run
@pytest.mark.nightly
def test_a_script_that_does_not_resume_loses_all_its_steps(drilled):
    report, _ = drilled("--faults", "rank,driver,stop,save", code=0, script="looped.py")
    assert all(each["caused"] and each["lost_steps"] >= each["step"] - 1 for each in report["outcomes"]), (
        report
    )


@pytest.mark.run
@pytest.mark.nightly
def test_a_generator_without_a_seed_is_named(drilled):
    report, _ = drilled("--faults", "stop", code=1, task="drilled:Noisy", **TASK)
    assert "a generator has no seed" in report["outcomes"][0]["cause"]


@pytest.mark.run
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_every_fault_is_caused(drilled, seed):
    report, _ = drilled(
        "--nodes", "--seed", str(seed), code=0, workers=2, folder=FAULTY, task="faulty:Faulty", **TASK
    )
    assert [each["fault"] for each in report["outcomes"] if each["caused"]] == [
        "rank",
        "driver",
        "stop",
        "save",
        "node",
    ]


def test_a_run_that_is_stopped_at_its_limit_is_not_started_again(monkeypatch):
    stopped, starts = threading.Event(), []

    def run_here(screen, **options):
        starts.append(options["fresh"])
        assert stopped.wait(10)
        return None, Result("stopped", "user", EXIT_STOPPED)

    run = SimpleNamespace(target="/runs/it", stop=lambda wait: stopped.set())
    monkeypatch.setattr(trial.Start, "of", lambda *given: SimpleNamespace(run=run, run_here=run_here))
    plan = SimpleNamespace(to="local", job_file="job.yaml", sets=lambda name, fault: ())
    done = trial.run_trial(plan, "stop", "", lambda text: None, within_s=0.1)
    assert (done.left, done.failure, starts) == (None, "it ended as stopped: ", [True])


def test_a_drill_beyond_its_budget_does_nothing(tmp_path):
    job = {
        "name": "it",
        "code": str(JOBS),
        "storage": str(tmp_path / "runs"),
        "task": "drilled:Plain",
        **TASK,
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    estimate = "9 starts × 30 s + 5 runs × 12 steps × 1 s, assumed = 330 s."
    for options, said in {
        (): f"about 5:30, and its budget is 2:00: it is not done.\n{estimate}",
        ("--faults", "rank,moon"): "'moon' is no fault",
        ("--steps", "3"): "at least 2 × 3 = 6",
        ("--budget", "soon"): "'soon'",
    }.items():
        drill = CliRunner().invoke(main, ["drill", str(tmp_path / "job.yaml"), "--budget", "2m", *options])
        assert drill.exit_code == EXIT_JOB and said in drill.stderr
        assert not (tmp_path / "runs").exists()


def test_the_runs_of_a_drill_have_names_however_long_that_of_the_job_is(tmp_path):
    (tmp_path / "job.yaml").write_text(f"{{name: {'a' * 47}, script: train.py}}")
    plan = DrillPlan(str(tmp_path / "job.yaml"), (), "local", tuple(FAULTS), None, 0)
    for trial_name in ("reference", "again", *FAULTS):
        job = load_job(plan.job_file, plan.sets(trial_name))
        assert job.name.endswith(f"-drill-{trial_name}")


def test_a_measured_step_is_that_of_a_resumed_run(tmp_path):
    """It trained 40 of its 1,000 steps in its last start."""
    job = {"name": "it", "code": str(JOBS), "storage": f"{tmp_path}/runs", "task": "drilled:Plain", **TASK}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    attempt = RunDir.newest(f"{tmp_path}/runs", "it").attempt(1)
    attempt.claim.create(sample_claim(time=1000.0))
    for number, step in enumerate((0, 960)):
        attempt.restart(number).plan.write(ResumePoint(None, step))
    result = Result("done", "finished", 0, step=1000, train_s=80.0, ended_at=1090.0)
    attempt.result.write(result)
    drill = CliRunner().invoke(main, ["drill", str(tmp_path / "job.yaml"), "--budget", "2m"])
    assert "9 starts × 10 s + 5 runs × 12 steps × 2 s, measured in its last run = 210 s." in drill.stderr
