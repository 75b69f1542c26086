"""Drills of real runs."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.drill.plan import FAULTS, DrillPlan
from clustertrain.errors import EXIT_JOB
from clustertrain.job.file import load_job
from commands import ran

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
    job = {**TASK, "args": {"step_s": 0.2}, "checkpoint": {"memory_every": 1}}
    report, storage = drilled(
        "--faults", "rank,stop", code=0, workers=2, folder=FAULTY, task="faulty:Faulty", **job
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
    assert {Path(each).name for each in report["kept"]} == {each.name for each in storage.iterdir()}


@pytest.mark.run
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--resume"], 0),
        # In CI: test_compare.py, and a schedule of its own.
        pytest.param(["--resume", "--forget"], 1, marks=pytest.mark.nightly),
    ],
)
def test_a_script_is_known_by_its_losses_and_files(drilled, args, code):
    report, _ = drilled("--faults", "rank", code=code, script="looped.py", args=args)
    (rank,) = report["outcomes"]
    assert rank["caused"] and rank["exact"] == (code == 0), rank
    assert rank["lost_s"] is not None
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
@pytest.mark.parametrize("seed", range(3))
def test_every_fault_is_caused(drilled, seed):
    report, _ = drilled("--seed", str(seed), code=0, workers=2, folder=FAULTY, task="faulty:Faulty", **TASK)
    assert [each["fault"] for each in report["outcomes"] if each["caused"]] == [
        "rank",
        "driver",
        "stop",
        "save",
    ]


def test_a_drill_with_a_wrong_option_does_nothing(tmp_path):
    job = {
        "name": "it",
        "code": str(JOBS),
        "storage": str(tmp_path / "runs"),
        "task": "drilled:Plain",
        **TASK,
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    for options, said in {
        ("--faults", "rank,moon"): "'moon' is no fault",
        ("--steps", "3"): "3 is not in the range x>=6",
    }.items():
        drill = CliRunner().invoke(main, ["drill", str(tmp_path / "job.yaml"), *options])
        assert drill.exit_code == EXIT_JOB and said in drill.stderr
        assert not (tmp_path / "runs").exists()


def test_the_runs_of_a_drill_have_names_however_long_that_of_the_job_is(tmp_path):
    (tmp_path / "job.yaml").write_text(f"{{name: {'a' * 47}, script: train.py}}")
    plan = DrillPlan(str(tmp_path / "job.yaml"), (), "local", tuple(FAULTS), 12, 0)
    for trial_name in ("reference", *FAULTS):
        job = load_job(plan.job_file, plan.sets(trial_name))
        assert job.name.endswith(f"-drill-{trial_name}")
