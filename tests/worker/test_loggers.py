"""Curves in MLflow's file store and in W&B's files, written and read by the real packages."""

import json
import os
import re
import socket
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from PIL import Image

from clustertrain.job.identity import Change
from clustertrain.node.installed import how_to_install
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.provenance import JobChanges
from clustertrain.worker.loggers import background
from clustertrain.worker.loggers.background import MOST_IMAGES, MOST_POINTS, Background
from clustertrain.worker.loggers.curve import LoggedCurve
from clustertrain.worker.loggers.logger import Point, Subject
from support.commands import ran
from support.curves import mlflow_client, mlflow_points, wandb_points, wandb_records, write_curve
from support.sample_records import sample_claim
from support.waiting import wait_until

pytestmark = pytest.mark.slow

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def temporary(monkeypatch):
    """W&B leaves the folder of its socket, whose path has to be short."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


@pytest.fixture
def run(tmp_path):
    run = RunDir.newest(str(tmp_path / "runs"), "digits")
    run.attempt(1).claim.write(sample_claim())
    return run


@pytest.fixture
def mlflow(run, monkeypatch):
    return mlflow_client(run.mlflow_path, monkeypatch)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    import wandb

    wandb.teardown()


def wandb_files(run):
    return sorted(run.local_path(run.key).glob("wandb/offline-run-*/*.wandb"))


def test_all_starts_of_a_generation_are_one_run_of_mlflow_with_each_step_once(run, mlflow):
    loss = {"train/loss": {10: 1.0, 20: 2.0, 30: 3.0}, "eval/loss": {30: 0.5}}
    warnings, notes = write_curve(run.attempt(1), loss, "mlflow", failed=True, **{"args.lr": 0.1})
    assert warnings == []
    first = mlflow.search_runs(["0"])[0]
    assert first.info.status == "FAILED"
    assert first.info.run_id in notes[0]
    later = {"train/loss": {30: 3.0, 40: 4.0}, "eval/loss": {40: 0.4}}
    write_curve(run.attempt(2), later, "mlflow", first_step=21, **{"args.lr": 0.2})
    (found,) = mlflow.search_runs(["0"])
    assert (found.info.run_name, found.info.status) == ("digits", "FINISHED")
    assert mlflow_points(mlflow, found.info.run_id, "train/loss") == [(10, 1), (20, 2), (30, 3), (40, 4)]
    assert mlflow_points(mlflow, found.info.run_id, "eval/loss") == [(30, 0.5), (40, 0.4)]
    assert found.data.params == {"args.lr": "0.1"}
    tags = found.data.tags
    assert (tags["changed.args.lr"], tags["clustertrain.run"]) == ("0.2", run.uri)


def test_names_that_mlflow_does_not_allow_are_changed(run, mlflow):
    values = {"eval/acc@1": {1: 0.5}, "eval/iou (mean)": {1: 0.4}}
    assert write_curve(run.attempt(1), values, "mlflow", **{"args.top-1%": 3})[0] == []
    (found,) = mlflow.search_runs(["0"])
    assert found.data.metrics == {"eval/acc_1": 0.5, "eval/iou _mean_": 0.4}
    assert found.data.params == {"args.top-1_": "3"}


def test_another_run_is_another_run_of_mlflow(run, mlflow):
    """A new generation, a start from the beginning with a changed job, a new run in a deleted place."""
    point = {"train/loss": {10: 1.0}}
    write_curve(run.attempt(1), point, "mlflow")
    run.attempt(2).claim.write(sample_claim(time=2.0))
    write_curve(run.attempt(2), point, "mlflow")
    assert len(mlflow.search_runs(["0"])) == 1
    run.attempt(3).claim.write(sample_claim(time=3.0))
    run.attempt(3).changes.write(JobChanges(0, None, (Change("args.lr", "1", "2"),)))
    write_curve(run.attempt(3), point, "mlflow")
    run.attempt(4).claim.write(sample_claim(time=4.0))
    write_curve(run.attempt(4), point, "mlflow")
    assert len(mlflow.search_runs(["0"])) == 2
    again = run.fresh()
    again.attempt(1).claim.write(sample_claim(time=5.0))
    write_curve(again.attempt(1), point, "mlflow")
    assert [found.info.run_name for found in mlflow.search_runs(["0"])].count("digits g2") == 1
    elsewhere = RunDir.newest(run.store.location, "digits-2")
    ids = []
    for claimed in (1.0, 2.0):
        elsewhere.attempt(1).claim.write(sample_claim(time=claimed))
        ids.append(Subject(elsewhere.attempt(1), 1, {}).curve_id)
        run.store.remove(elsewhere.attempt(1).claim.key)
    assert ids[0] != ids[1]


def test_mlflow_takes_its_own_variables(run, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "own"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "sweep")
    assert write_curve(run.attempt(1), {"train/loss": {1: 1.0}}, "mlflow")[0] == []
    own = mlflow_client(tmp_path / "own", monkeypatch)
    (found,) = own.search_runs([own.get_experiment_by_name("sweep").experiment_id])
    assert found.data.metrics == {"train/loss": 1.0}
    assert not run.mlflow_path.exists()


def test_all_starts_of_a_generation_have_one_id_of_wandb(run, offline):
    assert (
        write_curve(run.attempt(1), {"train/loss": {10: 1.0, 20: 2.0}}, "wandb", **{"args.lr": 0.1})[0] == []
    )
    begun_s = int(time.time())
    while int(time.time()) == begun_s:  # W&B's folders are named after the second of the start
        time.sleep(0.01)
    assert write_curve(run.attempt(2), {"train/loss": {30: 3.0}}, "wandb", first_step=21)[0] == []
    first, second = wandb_files(run)
    assert first.name == second.name
    # On a busy machine W&B's own process still writes when the time to finish is over.
    wait_until(lambda: list(wandb_points(first, "train/loss")) == [(10, 1.0), (20, 2.0)], 30)
    wait_until(lambda: list(wandb_points(second, "train/loss")) == [(30, 3.0)], 30)
    started = next(record.run for record in wandb_records(first) if record.HasField("run"))
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert (started.display_name, config["args.lr"]) == ("digits", 0.1)


def in_background(name, open_logger):
    """The logger, and its warnings."""
    warnings = []

    def note(kind, text):
        if kind == "warning":
            warnings.append(text)

    return Background(name, open_logger, 1, note=note), warnings


def ended(logger):
    logger.end(failed=False)
    logger.finish(time.monotonic() + 30)


def test_a_logger_that_fails_is_opened_again_and_writes_what_waited(run, monkeypatch):
    """A file is in the place of MLflow's folder until the warning was given."""
    run.mlflow_path.write_text("in the way")
    from clustertrain.worker.loggers.mlflow import open_logger

    logger, warnings = in_background("mlflow", lambda step: open_logger(Subject(run.attempt(1), step, {})))
    logger.add(Point(10, 1.0, {"train/loss": 1.0}))
    wait_until(lambda: warnings, 30)
    run.mlflow_path.unlink()
    logger.add(Point(20, 2.0, {"train/loss": 2.0}))
    ended(logger)
    (warning,) = warnings
    assert warning.startswith("mlflow: ")
    assert warning.endswith("; the training continues")
    mlflow = mlflow_client(run.mlflow_path, monkeypatch)
    (found,) = mlflow.search_runs(["0"])
    assert mlflow_points(mlflow, found.info.run_id, "train/loss") == [(10, 1.0), (20, 2.0)]


class _Slow:
    """A logger that is slower than the training: its first write lasts until the training is over."""

    place = ""

    def __init__(self):
        self.steps, self.is_over = [], threading.Event()

    def write(self, points):
        assert self.is_over.wait(60)
        self.steps += [point.step for point in points]

    def close(self, *, failed):
        pass


IMAGE = {"eval/truth": torch.zeros(1, 2, 2, dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("images", "most_points", "written", "lost"),
    [({}, 5, [1, 2, 3, 4, 5], 16), (IMAGE, MOST_POINTS, [*range(1, MOST_IMAGES + 1), 1000], 3)],
    ids=["points", "images, which take memory"],
)
def test_what_does_not_fit_into_the_queue_is_dropped_and_counted(
    monkeypatch, images, most_points, written, lost
):
    monkeypatch.setattr(background, "MOST_POINTS", most_points)
    slow, count = _Slow(), len(written) + lost
    logger, warnings = in_background("slow", lambda step: slow)
    for step in range(1, count):
        logger.add(Point(step, 1.0, {"train/loss": 1.0}, images))
    logger.add(Point(1000, 1.0, {"train/loss": 1.0}))
    slow.is_over.set()
    ended(logger)
    assert slow.steps == written
    assert len(warnings) == 1
    assert warnings[0].startswith(f"slow: {lost} of {count} points were not written: ")


def test_images_reach_wandb(run, offline):
    events = []
    curve = LoggedCurve(["wandb"], Subject(run.attempt(1), 1, {}), lambda kind, text: events.append(kind))
    curve.add("eval", 10, {"loss": 1.0})
    curve.add_images(10, {"truth": torch.full((1, 4, 6), 255, dtype=torch.uint8)})
    curve.close(failed=False, within_s=30)
    assert "warning" not in events
    (png,) = wandb_files(run)[0].parent.glob("files/media/images/eval/truth_*.png")
    with Image.open(png) as image:
        assert image.size == (6, 4)


def test_a_package_that_is_missing_is_a_warning_with_the_remedy(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "clustertrain.worker.loggers.mlflow", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # Python's own mark of a module that cannot be imported
    warnings, _ = write_curve(run.attempt(1), {"train/loss": {10: 1.0}}, "mlflow", "tensorboard")
    assert len(warnings) == 1
    assert warnings[0].startswith("mlflow is not written: ")
    assert warnings[0].endswith(f"; {how_to_install('mlflow')}")
    assert list(run.attempt(1).tensorboard.iterdir())


_TRAINING = """\
import json, os, sys, time
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.worker.loggers.curve import LoggedCurve
from clustertrain.worker.loggers.logger import Subject
storage, within_s, *names = sys.argv[1:]
events = {"warning": [], "note": []}
subject = Subject(RunDir.newest(storage, "digits").attempt(1), 1, {})
curve = LoggedCurve(names, subject, lambda kind, text: events[kind].append(text))
curve.add("train", 1, {"loss": 1.0})
begun_s = time.monotonic()
for step in range(2, 2001):
    curve.add("train", step, {"loss": 1.0})
added_s = time.monotonic()
curve.close(failed=False, within_s=float(within_s))
print(json.dumps([added_s - begun_s, time.monotonic() - added_s, events["warning"]]), flush=True)
os._exit(0)  # as a rank ends: at its own end, Python aborts if a thread of W&B holds the lock of stderr
"""


def train_2000_steps(run, *names, within_s, limits=(), **environment):
    """Writes a curve in a process of its own: (seconds of the steps, seconds of the end, warnings)."""
    ended = ran(
        [*limits, sys.executable, "-c", _TRAINING, run.store.location.uri, str(within_s), *names],
        code=0,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SRC), **environment},
        timeout=60,
    )
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_server_that_never_answers_delays_neither_the_training_nor_the_end(run):
    """It accepts connections: a closed port would be refused at once."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        own = {"MLFLOW_TRACKING_URI": url, "WANDB_BASE_URL": url, "WANDB_API_KEY": "0" * 40}
        steps_s, end_s, warnings = train_2000_steps(run, "mlflow", "wandb", within_s=1, **own)
    assert steps_s < 0.5
    assert end_s < 1.5
    assert [text.partition(":")[0] for text in warnings] == ["mlflow", "wandb"]
    assert all("2000 of 2000 points were not written" in text for text in warnings)


def test_a_disk_that_takes_no_more_costs_only_points(run):
    """The limit of the size of a file stands for the end of the disk."""
    _, end_s, warnings = train_2000_steps(
        run, "mlflow", "tensorboard", within_s=5, limits=["prlimit", "--fsize=40000"]
    )
    assert end_s < 6
    for name in ("mlflow", "tensorboard"):
        first, last = (text for text in warnings if text.startswith(name))
        cause = r"\w+: \[Errno 27\] File too large"
        assert re.fullmatch(f"{name}: {cause}; the training continues", first)
        lost = re.fullmatch(rf"{name}: (\d+) of 2000 points were not written: {cause}", last)
        assert 100 < int(lost[1]) < 2000
