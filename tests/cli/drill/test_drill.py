"""Drills of real runs."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import save_file

from clustertrain.checkpoints.digests import of_files
from clustertrain.cli.drill.compare import differences
from clustertrain.cli.drill.left import RunFingerprint, _read_lines
from clustertrain.cli.drill.plan import FAULTS, DrillPlan
from clustertrain.cli.main import main
from clustertrain.errors import EXIT_JOB
from clustertrain.job.file import load_job
from support.commands import ran

JOBS = Path(__file__).parent / "jobs"
FAULTY = Path(__file__).parents[2] / "whole" / "jobs"


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
@pytest.mark.nightly  # in CI: a drill of a task above, and what scripts leave is compared below
def test_a_script_is_known_by_its_losses_and_files(drilled):
    report, _ = drilled("--faults", "rank", code=0, script="looped.py", args=["--resume"])
    (rank,) = report["outcomes"]
    assert rank["caused"] and rank["exact"], rank
    assert rank["lost_s"] is not None
    assert report["compared"]["tensors and numbers of checkpoints"] > 5


def test_a_drill_with_a_wrong_option_does_nothing(tmp_path):
    job = {
        "name": "it",
        "code": str(FAULTY),
        "storage": str(tmp_path / "runs"),
        "task": "faulty:Faulty",
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


STEPS = range(1, 7)
RUN = RunFingerprint(
    curve={f"step {n}": {"loss": repr(1 / n), "lr": "0.1"} for n in STEPS},
    samples={f"epoch 0, step {n}, rank 0": {f"the sample ids of pass {n}": f"{n:x}"} for n in STEPS},
    states={"step 4": {"model.w": "float32 [2] aa", "rng_of_ranks.0.torch": "uint8 [3] bb"}},
)


def with_curve(step, **values):
    return replace(RUN, curve={**RUN.curve, f"step {step}": {**RUN.curve[f"step {step}"], **values}})


def with_state(**values):
    return replace(RUN, states={"step 4": {**RUN.states["step 4"], **values}, "step 5": {"model.w": "new"}})


@pytest.mark.parametrize(
    ("other", "where", "what"),
    [
        (with_curve(5, lr="0.2"), "step 5", "lr"),
        (
            replace(with_curve(5, lr="0.2"), states={"step 4": {**RUN.states["step 4"], "model.w": "else"}}),
            "step 4",
            "model.w",
        ),
        (replace(RUN, curve=dict([*RUN.curve.items()][:-1])), "step 6", "loss"),
        (
            replace(
                RUN,
                samples={**RUN.samples, "epoch 0, step 2, rank 0": {"the sample ids of pass 2": "ff"}},
            ),
            "epoch 0, step 2, rank 0",
            "the sample ids of pass 2",
        ),
        (with_state(**{"rng_of_ranks.0.torch": "uint8 [3] cc"}), "step 4", "rng_of_ranks.0.torch"),
    ],
)
def test_the_first_difference_is_that_of_the_earliest_step(other, where, what):
    assert differences(RUN, RUN) == ()
    found = differences(RUN, other)
    assert (found[0].where, found[0].what) == (where, what)


def test_a_run_without_a_checkpoint_in_common_differs():
    assert differences(RUN, replace(RUN, states={}))[0].found == "missing"


def test_files_are_compared_by_their_tensors(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, number in ((a, 1.0), (b, 2.0)):
        folder.mkdir()
        torch.save({"w": torch.ones(3), "at": str(folder), "steps": 7, "lr": number}, folder / "last.pt")
        save_file({"w": torch.full((2,), number, dtype=torch.bfloat16)}, folder / "model.safetensors")
        (folder / "odd.pt").write_bytes(b"no archive")
    one, two = of_files(a), of_files(b)
    assert one["last.pt"]["w"] == two["last.pt"]["w"] and one["last.pt"]["lr"] == "float 1.0"
    assert one["last.pt"].keys() == {"w", "lr"}
    assert one["model.safetensors"] != two["model.safetensors"]
    assert one["odd.pt"] == two["odd.pt"] == {}


def test_what_no_library_loads_has_nothing_to_compare(tmp_path):
    save_file({"w": torch.ones(100)}, tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "cut.safetensors").read_bytes()[:-9])
    (tmp_path / "tokens.bin").write_bytes(b"0.")  # an opcode of pickle that finds nothing
    torch.save({"w": torch.eye(2).to_sparse()}, tmp_path / "sparse.pt")
    (tmp_path / "step=9.ckpt").mkdir()
    names = ("cut.safetensors", "sparse.pt", "tokens.bin")
    assert of_files(tmp_path) == {name: {} for name in names}


def test_a_line_is_known_by_its_epoch_and_step(job):
    found = RunFingerprint()
    lines = [
        "epoch 0 step 1: mean loss 0.5",
        "val_loss=nan",
        "{'loss': '1e-05', 'epoch': '0.5'}",
        "no number",
    ]
    _read_lines(found, [*lines, "epoch 0 step 1: mean loss 0.4"], job().drill.loss)
    assert found.lost_steps == 1
    assert [(key, each["loss"]) for key, each in found.curve.items()] == [
        ("epoch 0 step 1, loss", "0.4"),
        ("2, val_loss", "nan"),
        ("epoch 0.5, loss", "1e-05"),
    ]
    named = RunFingerprint()
    pattern = r"at (?P<step>\d+): cost (?P<loss>\d+)"
    _read_lines(named, ["at 7: cost 3"], job(drill={"loss": pattern}).drill.loss)
    assert named.curve == {"7, at": {"loss": "3"}}
