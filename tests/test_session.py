"""The session of one rank, with a stand-in for the run; whole runs of a function are in tests/whole."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from clustertrain import session
from clustertrain.errors import JobError
from clustertrain.node import variables
from clustertrain.session import Session
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.host import Requests
from clustertrain.training.settings import SaveEvery
from support.commands import ran


class StandIn:
    """The part of training's Host that a session uses."""

    def __init__(self):
        self.pending, self.saves, self.logs = Requests(), [], []

    def phase(self, name, step):
        self.step = step

    def requests(self):
        return self.pending

    def restore(self):
        return self.saves[-1][0] if self.saves else None

    saves_in_background = True

    def wait_for_write(self, timeout_s):
        return None

    def save(self, state, progress):
        self.saves.append((dict(state), progress))

    def log(self, record):
        self.logs.append(record)


@pytest.fixture
def begin():
    def make(*, rank=0, steps=None, minutes=None, keep_best=None):
        run = StandIn()
        rank_info = RankInfo(rank, rank, 1, torch.device("cpu"))
        return run, Session(
            run=run,
            rank_info=rank_info,
            data={},
            args={},
            save_every=SaveEvery(steps, minutes=minutes),
            keep_best=keep_best,
        )

    return make


def test_saves_are_due_by_steps(begin):
    _, s = begin(steps=3)
    assert [s.step_done(step).save for step in range(1, 7)] == [False, False, True, False, False, True]


def test_saves_are_due_by_the_clock_since_the_last_one(begin):
    _, s = begin(minutes=10)
    assert not s.step_done(1).save
    s._line._saved_at_s -= 600
    assert s.step_done(2).save
    s.save(step=2, state={})
    assert not s.step_done(3).save


def test_metrics_of_a_checkpoint_are_numbers(begin):
    run, s = begin()
    s.save(step=1, state={}, metrics={"loss": torch.tensor(0.5), "hits": 3})
    assert run.saves[0][1].metrics == {"loss": 0.5, "hits": 3.0}
    for wrong in ("x", None, torch.ones(2), {}):
        with pytest.raises(JobError, match=r"session.save got metrics\['loss'\] = .*, which is not a number"):
            s.save(step=2, state={}, metrics={"loss": wrong})


def test_the_first_metrics_have_that_of_keep_best_but_for_a_last_save(begin):
    run, s = begin(keep_best="acuracy")
    s.save(step=1, state={})
    with pytest.raises(JobError, match=r"keep_best.metric is 'acuracy', but .* at step 2 has the metrics: "):
        s.save(step=2, state={}, metrics={"loss": 1.0, "accuracy": 0.5})
    run.pending = Requests(stop=True)
    s.step_done(3)
    s.save(step=3, state={}, metrics={"accuracy": 0.5})
    assert [progress.step for _, progress in run.saves] == [1, 3]
    run, s = begin(keep_best="accuracy")
    for metrics in ({"accuracy": 0.5}, {"loss": 1.0}):  # the name is right, so other metrics may follow
        s.save(step=len(run.saves), state={}, metrics=metrics)
    assert len(run.saves) == 2


def test_restore_returns_the_saved_state_its_step_and_random_numbers(begin):
    _, s = begin()
    assert s.restore() is None
    s.save(step=7, state={"model": {"w": torch.ones(2)}})
    expected = torch.rand(3)
    state = s.restore()
    assert state["step"] == 7
    assert torch.equal(state["model"]["w"], torch.ones(2))
    assert "rng_of_ranks" not in state
    assert torch.equal(torch.rand(3), expected)


def test_only_rank_0_logs_and_prints(begin, capsys):
    for rank in (0, 1):
        run, s = begin(rank=rank)
        s.log(step=1, loss=0.5, accuracy=0.9)
        s.print("hello from", rank)
        assert len(run.logs) == (rank == 0)
    assert capsys.readouterr().out == "hello from 0\n"


def test_numbers_of_torch_and_numpy_are_logged_as_numbers(begin):
    run, s = begin()
    loss = torch.tensor(0.5, requires_grad=True)
    s.log(step=np.int64(3), loss=loss, lr=np.float32(0.25), hits=torch.tensor([3]), best=None)
    assert json.dumps(run.logs[0]) == json.dumps(
        {"kind": "train", "step": 3, "epoch": 0, "loss": 0.5, "lr": 0.25, "hits": 3, "best": None}
    )


@pytest.mark.parametrize("step", [np.int64(5), torch.tensor(5)])
def test_a_step_of_numpy_or_torch_is_saved_as_a_number(begin, step):
    run, s = begin()
    s.save(step=step, state={})
    state, progress = run.saves[0]
    assert (type(state["step"]), type(progress.step), progress.step) == (int, int, 5)


def test_a_function_that_does_not_count_its_steps_may_ask_for_a_stop_alone(begin):
    run, s = begin()
    assert not s.stop_requested()
    run.pending = Requests(save=True)
    assert not s.stop_requested()
    run.pending = Requests(stop=True)
    s.log(step=7)
    assert s.stop_requested() and s.stop_requested() and s.stopped
    assert run.step == 7, "the watchdog knows the step"
    run.pending = Requests()
    assert s.step_done(8).save, "a request for a save is kept for step_done"


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The session of a script's process, with these variables."""

    def make(**names):
        for name in (variables.METRICS, variables.REQUESTS, variables.CHECKPOINT_DIR):
            monkeypatch.delenv(name, raising=False)
        for name, value in names.items():
            monkeypatch.setenv(getattr(variables, name, name), str(value))
        monkeypatch.setattr(session, "_current", None)
        monkeypatch.chdir(tmp_path)
        return session

    return make


def test_outside_a_run_it_does_nothing(script, tmp_path):
    of_module = script()
    of_module.log(step=1, loss=torch.tensor(0.5))
    assert not of_module.stop_requested()
    assert (of_module.data, of_module.checkpoint_dir) == ({}, Path("checkpoints"))
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoints"], "which exists"
    with pytest.raises(AttributeError, match=r"restore: a script has log, .*\nThe others are of a function"):
        of_module.current().restore()
    with pytest.raises(AttributeError, match="has no attribute 'dat'"):
        of_module.dat  # noqa: B018


def test_a_script_has_the_paths_of_the_run_and_writes_its_lines(script, tmp_path):
    lines, data = tmp_path / "metrics.jsonl", {f"{variables.DATA_PREFIX}TRAIN_SET": tmp_path}
    of_module = script(METRICS=lines, CHECKPOINT_DIR=tmp_path / "a" / "b", **data)
    assert of_module.data == {"train_set": tmp_path}
    assert of_module.checkpoint_dir == tmp_path / "a" / "b" and of_module.checkpoint_dir.is_dir()
    of_module.log(step=np.int64(3), loss=torch.tensor(0.5))
    of_module.log(step=3, kind="eval", accuracy=float("nan"))
    with pytest.raises(JobError, match='It is "train" or "eval"'):
        of_module.log(step=3, kind="val")
    first, second = map(json.loads, lines.read_text().splitlines())
    assert {**first, "time": 0} == {"kind": "train", "time": 0, "step": 3, "epoch": 0, "loss": 0.5}
    assert (second["kind"], second["loss"], str(second["accuracy"])) == ("eval", None, "nan")
    assert script(CHECKPOINT_DIR="s3://bucket/a").checkpoint_dir == "s3://bucket/a"


def test_a_script_imports_neither_torch_nor_a_package(tmp_path):
    """Its Python may have none."""
    (tmp_path / "clustertrain").symlink_to(Path(session.__file__).parent)
    program = "from clustertrain import session; session.log(step=1, loss=2); print(session.stop_requested())"
    argv = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"]
    assert ran(argv, code=0).stdout == "False\n"
