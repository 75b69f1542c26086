"""Functions and scripts as people write them, on two real ranks: right, or named before it costs an hour."""

import time

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.run_files.best import best_checkpoint
from clustertrain.run_files.recorded_job import job_of

pytestmark = pytest.mark.parametrize("start", ["without Ray"], indirect=True)

SAVING = """
import torch, torch.distributed as dist
from clustertrain import session
def train(config):
    s = session.current()
    start = (s.restore() or {"step": 0})["step"]
    for step, accuracy in enumerate(config["accuracies"], 1):
        dist.all_reduce(torch.ones(1))
        if step > start:
            own = {"accuracy": accuracy} if s.rank == 0 else None  # those of rank 0 are saved
            s.save(step=step, state={}, metrics=own if config["save"] else None) if config["save"] else None
        s.step_done(step)
"""


@pytest.fixture
def run_of(make_run, tmp_path):
    """Makes a run of the function or script in a text."""

    def make(name, text, *, script=False, **sections):
        code = tmp_path / name
        code.mkdir()
        (code / "mine.py").write_text(text)
        entry = {"script": "mine.py"} if script else {"function": "mine:train"}
        return make_run(name, code=str(code), **{**entry, **sections})

    return make


def test_the_best_checkpoint_of_a_misspelt_metric_is_not_removed(run_of, start):
    args = {"accuracies": [0.8, 0.9, 0.7], "save": True}
    best = {"keep_last": 1, "keep_best": {"metric": "accuracy", "mode": "max"}}
    run = run_of("best", SAVING, args=args, checkpoint=best)
    start(run).end(0)
    found = best_checkpoint(run.run_dir, job_of(run.attempt))
    assert (found.name, found.value) == ("00000002-1.0", 0.9)
    sets = ["checkpoint.keep_best.metric=acuracy", "args.accuracies=[0.8, 0.9, 0.7, 0.6]"]
    options = [each for pair in sets for each in ("--set", pair)]
    output = run.start("--no-ray", "--accept-changes", *options).end(2)
    assert "keep_best.metric is 'acuracy', but session.save at step 4 has the metrics: accuracy." in output
    assert "Did you mean 'accuracy'?" in output
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["00000002-1.0", "00000003-1.0"]


# In CI test_entry_points.py has a function without the section.
@pytest.mark.parametrize(
    ("sections", "warns"),
    [({"checkpoint": {"every": {"steps": 2}}}, True), pytest.param({}, False, marks=pytest.mark.nightly)],
)
def test_a_function_with_a_section_checkpoint_that_saves_nothing_is_warned(run_of, start, sections, warns):
    run = run_of("unsaved", SAVING, args={"accuracies": [0.8], "save": False}, **sections)
    output = start(run).end(0)
    text = "warning: mine:train ended without session.save: the run has no checkpoint"
    assert (text in output) == warns


OF_RAY = """
import ray.train
from ray.train.torch import TorchTrainer
def loop(config):
    ray.train.report({"loss": 1.0}, checkpoint=ray.train.Checkpoint("d"))
TorchTrainer(loop).fit() if __name__ == "__main__" else None
"""


@pytest.mark.parametrize("is_script", [False, True])
def test_a_program_of_ray_train_is_refused_and_claims_no_attempt(run_of, start, is_script):
    entry = {} if is_script else {"function": "mine:loop"}
    run = run_of("of-ray", OF_RAY, script=is_script, **entry)
    output = start(run).end(2)
    remedy = "`function: package.module:name`" if is_script else "Write session.save(…) and session.restore()"
    assert remedy in output and run.run_dir.attempts() == []


OF_ITS_OWN = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
path = sys.argv[1]
start = torch.load(path) if os.path.exists(path) else torch.zeros(1)
dist.barrier()
for epoch in range(int(start), 4):
    dist.all_reduce(seen := torch.ones(1))
    if dist.get_rank() == 0:
        torch.save(torch.tensor([epoch + 1.0]), path)
    dist.barrier()
    if epoch < 3:
        raise OverflowError("the sensor sent nothing")
print("seen by", int(seen), "ranks after epoch", epoch, flush=True)
dist.destroy_process_group()
"""


# In CI test_entry_points.py has a script with failures.retries.
@pytest.mark.parametrize("says_it", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_a_script_with_a_state_of_its_own_starts_as_often_as_its_job_says(run_of, start, tmp_path, says_it):
    code, restarts, failures = (0, 3, {"retries": 3}) if says_it else (1, 1, {})
    sections = {"args": [str(tmp_path / "own.pt")], "failures": failures}
    run = run_of("own-state", OF_ITS_OWN, script=True, **sections)
    output = start(run).end(code)
    assert run.result.restarts == restarts
    assert ("seen by 2 ranks after epoch 3" in output) == (code == 0)
    assert ("If it does, write how often it may start again: failures.retries." in output) == (code == 1)
    assert "another restart would not help" not in output


LEAVES = """
import time, torch, torch.distributed as dist
from clustertrain import session

def mean(value):
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    return value / 2

def train(config):
    s = session.current()
    for step in range(1, 8):
        if config["early"] and s.rank == 1 and step == 5:  # it has fewer batches
            dist.destroy_process_group()
            return
        s.log(step=step, loss=mean(torch.ones(1)).item())
        s.step_done(step)
    if s.rank == 0:
        time.sleep(36)
        print("exported", flush=True)
"""


def test_a_rank_that_leaves_the_function_early_is_named_with_both_lines(run_of, start):
    run = run_of("leaves", LEAVES, args={"early": True})
    output = start(run).end(2, within_s=180)
    assert (
        "error: rank 1 returned from train() (mine.py:15) while rank 0 waits in a collective (mine.py:7), "
        "which rank 1 never joins.\nEvery rank has to leave the loop after the same step: " in output
    )
    assert (run.result.cause, run.result.step, run.result.restarts) == ("job", 4, 0)
    ended = {event["kind"]: event["time"] for event in run.events}
    assert 25 < ended["worker_died"] - ended["group_started"] < 60


@pytest.mark.nightly  # a counter-proof of the test above, which is in CI
def test_a_rank_that_works_alone_at_the_end_is_left_in_peace(run_of, start):
    run = run_of("alone", LEAVES, args={"early": False})
    assert "exported" in start(run).end(0, within_s=180)
    assert (run.result.step, run.result.restarts, run.result.metrics) == (7, 0, {"loss": 1.0})


HANGS = """
import threading, torch, torch.distributed as dist
from clustertrain import session
def train(config):
    s = session.current()
    for step in range(1, 9):
        dist.all_reduce(torch.ones(1))
        if s.rank == 1 and step == 5:
            threading.Event().wait()
        s.log(step=step, loss=1.0)
        if s.step_done(step).save:
            s.save(step=step, state={})
"""


def test_a_stop_of_a_function_that_hangs_ends_within_the_grace_time(run_of, start):
    sections = {"checkpoint": {"every": {"steps": 2}}, "failures": {"grace": "4s"}}
    run = run_of("hangs", HANGS, **sections)
    start(run).wait_for_step(5)
    time.sleep(1)
    CliRunner().invoke(main, ["stop", str(run.job_file)])
    output = run.end(75, within_s=120)
    assert "no progress in phase 'step' for 4 s after the request to stop (failures.grace)" in output
    assert 3 < run.result.ended_at - run.attempt.stop.read().time < 20
    assert (run.result.state, run.result.checkpoint, run.result.restarts) == ("stopped", "00000004-1.0", 0)
