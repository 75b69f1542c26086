"""Whole runs on a GPU: the real program, Ray, a driver and one worker. They need the installed kit."""

import os
from pathlib import Path

import pytest
import torch

from gpu.suite import IS_GPU, needs_a_gpu, needs_cuda

pytest.importorskip(
    "ray", reason="ray is not installed: `make test-gpu` runs whole runs with the installed kit"
)
pytest.importorskip("pydantic", reason="the kit is not installed: whole runs need it")

from clustertrain.run_files.streams.history import AttemptFollower
from support.whole_run import Run, same_weights

pytestmark = [pytest.mark.gpu, needs_a_gpu]
JOBS = Path(__file__).parent / "jobs"
END_S = 300.0
TRAIN = {"epochs": 3, "batch_size": 8, "log_every": 2, "eval_every": {"epochs": 1}}
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    paths = [str(JOBS.parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def make(name, **sections):
        sections = {
            "code": str(JOBS),
            "resources": {"workers": 1, "gpus_per_worker": int(IS_GPU)},
            **sections,
        }
        return Run(tmp_path, name, **sections)

    return make


def finished(run):
    output = run.start().end(0, within_s=END_S)
    assert run.result.state == "done", output
    return output


def test_a_killed_rank_is_started_again_and_the_weights_are_the_same(run_of, tmp_path, row):
    common = {
        "task": "gpu_task:OnGpu",
        "train": TRAIN,
        "env": DETERMINISTIC,
        "checkpoint": {"every": {"steps": 2}},
    }
    whole = run_of("whole", **common)
    output = finished(whole)
    assert "evaluated at step" in output
    args = {"fault": "kill", "at_call": 20, "marker": str(tmp_path / "killed")}
    killed = run_of("killed", **common, args=args)
    finished(killed)
    assert killed.result.restarts == 1
    assert same_weights(killed.weights(), whole.weights())
    died = (tmp_path / "killed").stat().st_mtime
    records = AttemptFollower(killed.attempt).new()
    started, *_ = (r["time"] for r in records if r["kind"] == "group_started" and r["restart"] == 1)
    trained, *_ = (r["time"] for r in records if r["kind"] == "train" and r["time"] > started)
    row("SIGKILL of the rank", "s", new_workers=started - died, next_line_of_the_log=trained - died)


@needs_cuda
def test_cuda_out_of_memory_is_named_with_its_remedy(run_of, tmp_path):
    args = {"fault": "memory", "at_call": 5, "marker": str(tmp_path / "full")}
    run = run_of("full", task="gpu_task:OnGpu", train=TRAIN, args=args, failures={"retries": 0})
    output = run.start().end(1, within_s=END_S)
    assert "GPU" in output and "memory" in output and "batch_size" in output, output
    assert "Traceback" not in output, output


def test_a_compiled_model_trains_in_ddp(run_of):
    workers = torch.cuda.device_count() if IS_GPU else 1
    resources = {"workers": workers, "gpus_per_worker": int(IS_GPU)}
    finished(run_of("compiled", task="gpu_task:OnGpu", train={**TRAIN, "compile": True}, resources=resources))


def test_a_function_trains(run_of):
    jobs = JOBS.parents[1] / "whole" / "jobs"
    run = run_of("function", code=str(jobs), function="own_loop:train", args={"steps": 4, "step_s": 0.0})
    assert "starting at step 0 of 4 with 1 workers" in finished(run)
    found = [event["text"] for event in run.events if event["kind"] == "transport"]
    assert [text.startswith("NCCL on ") for text in found] == [True] * IS_GPU, "Gloo has none"


def test_a_rank_that_hangs_leaves_the_flight_record_of_nccl(run_of):
    """The second step is longer than its limit."""
    run = run_of(
        "hangs",
        code=str(JOBS.parents[1] / "whole" / "jobs"),
        function="own_loop:train",
        args={"steps": 4, "step_s": 15.0},
        failures={"retries": 0, "watchdog": {"step": "3s"}},
    )
    output = run.start().end(1, within_s=END_S)
    assert "no progress in phase 'step' for 3 s" in output
    traces = [*run.attempt.path.glob("restarts/0/nccl/nccl_trace_rank_*")]
    assert [path.name for path in traces] == ["nccl_trace_rank_0"] * IS_GPU, "Gloo has none"


def test_a_script_trains_and_sees_the_gpu_of_its_rank(run_of):
    output = finished(run_of("script", script="gpu_script.py"))
    assert f"rank 0 of 1 trained on {'cuda' if IS_GPU else 'cpu'}" in output
