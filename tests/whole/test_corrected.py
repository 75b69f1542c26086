"""A run that is stopped in `make train` goes on with a job that was changed."""

import os
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.run_files.streams.history import curve
from support.curves import mlflow_client, mlflow_points, wandb_points
from support.waiting import wait_until
from support.whole_run import ONE_WORKER

ROOT = Path(__file__).parents[2]


@pytest.fixture
def venv(tmp_path):
    """What `make` takes for a finished installation: the program of this Python."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "clustertrain"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clustertrain.cli "$@"\n')
    program.chmod(0o755)
    (folder / "constraints.txt").touch()
    (folder / ".installed").touch()
    return folder


def assert_one_curve(run, mlflow):
    """MLflow and W&B have the curve of both attempts as one run, with each step once."""
    steps = [record["step"] for record in curve(run.run_dir) if record["kind"] == "train"]
    (found,) = mlflow.search_runs(["0"])
    points = mlflow_points(mlflow, found.info.run_id, "train/loss")
    assert [step for step, _ in points] == steps
    assert found.info.status == "FINISHED"
    assert found.data.params["train.batch_size"] == "4"
    assert found.data.tags["changed.train.batch_size"] == "8"
    files = sorted(run.run_dir.local_path(run.run_dir.key).glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert files[0].name == files[1].name
    assert sorted(step for file in files for step, _ in wandb_points(file, "train/loss")) == steps
    assert not [event for event in run.events if event["kind"] == "warning"]


def loggers_have_begun(run, mlflow, step):
    """Whether both show a start that begins after this step: until then they may import their packages."""
    files = run.run_dir.local_path(run.run_dir.key).glob("wandb/offline-run-*/*.wandb")
    (found,) = mlflow.search_runs(["0"])
    return len([*files]) == 2 and mlflow_points(mlflow, found.info.run_id, "train/loss")[-1][0] > step


def test_ctrl_c_in_make_is_a_stop_and_the_run_goes_on_with_a_changed_job(
    make_run, venv, tmp_path, monkeypatch
):
    """Each start waits in its midst for what the test waits for; a stop is found within 0.2 s, and the steps
    that are left take a second."""
    go_on = tmp_path / "go-on"
    run = make_run(
        "corrected",
        task="held:Held",
        args={"until": str(go_on), "at_call": 3, "step_s": 0.05},
        train={"epochs": 2, "batch_size": 4, "log_every": 1, "log": ["tensorboard", "mlflow", "wandb"]},
        env={"WANDB_MODE": "offline"},
        **ONE_WORKER,
    )
    # A shell in the background, as some CI has it, would pass SIGINT on as ignored.
    make = ("env", "--default-signal=INT", "make", "train")
    settings = (f"VENV={venv}", f"JOB={run.job_file}", "ARGS=--fresh")
    run.launch(*make, *settings, cwd=ROOT, start_new_session=True)
    run.wait_for_step(2)
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
    run.wait_for_event("stop_requested")
    go_on.touch()
    output = run.end(-signal.SIGINT)
    *_, said, command = output.splitlines()
    assert said == "The run was stopped and has saved a checkpoint."
    assert command.startswith("continue:  ") and command.endswith(f"clustertrain run {run.job_file}")
    assert run.result.exit_code == 75
    stopped = run.result

    changed = ["--set", "args.at_call=4", "--set", "train.batch_size=8"]
    assert f"clustertrain run {run.job_file} {' '.join(changed)} --accept-changes`" in run.start(
        *changed
    ).end(2)
    go_on.unlink()
    run.start(*changed, "--accept-changes").wait_for_event("resumed")
    mlflow = mlflow_client(run.run_dir.mlflow_path, monkeypatch)
    wait_until(lambda: loggers_have_begun(run, mlflow, stopped.step), run.patience_s)
    go_on.touch()
    output = run.end(0)
    assert "  args.at_call: 3 → 4\n  train.batch_size: 4 → 8\n" in output
    assert f"resuming from checkpoint {stopped.checkpoint}" in output
    status = CliRunner().invoke(main, ["status", str(run.job_file)]).output
    assert f"changes     step {stopped.step}: args.at_call 3 → 4\n" in status
    assert f"step {stopped.step}: train.batch_size 4 → 8\n" in status
    assert_one_curve(run, mlflow)

    refused = ["--set", "args.width=8", "--set", "train.epochs=3", "--set", "train.log=[]"]
    output = run.start(*changed, *refused, "--accept-changes").end(2)
    assert "The checkpoint's weights do not fit Held.model():" in output
    assert "the run is as it was: done (finished)." in output
    status = CliRunner().invoke(main, ["status", str(run.job_file)]).output
    assert "done (finished)" in status and "width" not in status
    assert "already finished" in run.start(*changed).end(0)
