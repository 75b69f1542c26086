"""What is changed between two starts: tables have the args with which the shown steps were trained; code and
data that have changed are named with the steps.
"""

import json
import re

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.run_files.streams.history import curve
from support.example_modules import clustertrain

LOOP = """\
import torch
from clustertrain import session


def train(config):
    s = session.current()
    weight, start = torch.ones(1), 0
    if (state := s.restore()) is not None:
        weight, start = state["weight"], state["step"]
    for step in range(start + 1, config["steps"] + 1):
        weight = weight * (1 - config["lr"])
        s.log(step=step, loss=weight.item())
        s.step_done(step)
    # As in many scripts, whatever is left to train; the evaluation has another loss on each start.
    s.log(step=config["steps"], loss=weight.item() + config["lr"])
    s.save(step=config["steps"], state={"weight": weight})
"""


def called(command, *arguments):
    result = CliRunner().invoke(main, [command, *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_start_that_trains_nothing_changes_no_record(make_run):
    run = make_run("halved", function="loop:train", code=".", args={"lr": 0.5, "steps": 3})
    (run.folder / "loop.py").write_text(LOOP)
    run.start("--no-ray").end(0)
    recorded = run.run_dir.local_path(run.run_dir.job_key).read_text()
    loss = 0.5**3 + 0.5
    changed = ["--set", "args.lr=1.0"]

    refused = run.start("--no-ray", *changed).end(2)
    remedies = [line for line in refused.splitlines() if line.endswith("`")]
    beside = f"run {run.job_file} --set args.lr=1.0 --set name=halved-2"
    assert f"{beside}`" in remedies[0]
    assert [each.rpartition(" ")[2] for each in remedies[1:]] == ["--accept-changes`"]

    output = run.start("--no-ray", *changed, "--accept-changes").end(0)
    assert "halved is already finished; nothing was trained" in output and f"{beside}`" in output
    assert "step        3\n" in output and f"loss        {loss:g}\n" in output
    assert run.run_dir.local_path(run.run_dir.job_key).read_text() == recorded
    (row,) = json.loads(called("ls", run.job_file, "--args", "lr", "--metric", "loss", "--json"))
    assert (row["state"], row["step"], row["args.lr"], row["metrics.loss.last"]) == ("done", 3, 0.5, loss)
    status = called("status", run.job_file)
    assert "step        3\n" in status and f"loss        {loss:g}\n" in status and "changes" not in status
    assert "already finished" in run.start("--no-ray").end(0), "the job of the run is the first one"

    output = run.start("--no-ray", *changed, "--set", "args.steps=4", "--accept-changes").end(0)
    assert "already finished" not in output
    assert [record["step"] for record in curve(run.run_dir) if record["kind"] == "train"][-1] == 4
    (row,) = json.loads(called("ls", run.job_file, "--args", "lr", "--json"))
    assert (row["step"], row["args.lr"]) == (4, "0.5, 1.0")


MODEL = """
import csv, os
import torch
from torch.utils.data import TensorDataset
from clustertrain import Task

HERE = os.path.dirname(__file__)

class Line(Task):
    lr = 0.01
    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    def loss(self, model, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(model(x), y)
    def train_data(self, data):
        with open(os.path.join(HERE, "values.txt")) as file:
            y = torch.tensor([[float(line)] for line in file])
        return TensorDataset(torch.arange(16.0)[:, None], y)
    def on_epoch(self, epoch):
        with open(os.path.join(HERE, "results.csv"), "a") as file:
            file.write(f"{epoch}\\n")
"""


@pytest.mark.parametrize("start", ["without Ray"], indirect=True)
def test_changed_code_and_data_are_named_with_the_steps_and_a_runs_own_files_are_not(
    make_run, start, tmp_path
):
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(MODEL)
    (code / "values.txt").write_text("1\n" * 16)
    (code / "results.csv").write_text("epoch\n")
    train = {"epochs": 1, "batch_size": 2}
    run = make_run("line", task="mine:Line", train=train, code=str(code))

    def started(epochs):
        text = re.sub("epochs: .", f"epochs: {epochs}", run.job_file.read_text())
        run.job_file.write_text(text)
        output = start(run).end(0)
        assert run.result.step == 4 * epochs
        return re.findall("^note: (.* changed .*)$", output, re.MULTILINE)

    assert started(1) == []
    (code / "mine.py").write_text(MODEL.replace("Tanh", "ReLU"))
    assert started(2) == ["mine.py has changed since step 4"]
    assert started(3) == []
    assert (code / "results.csv").read_text().count("\n") > 1
    (code / "values.txt").write_text("2\n" * 16)
    assert started(4) == ["values.txt has changed since step 12"]
    rows = json.loads(clustertrain("status", str(run.job_file), "--json").stdout)["rows"]
    assert [text for _, text in rows if "has changed since" in text] == [
        "mine.py has changed since step 4",
        "values.txt has changed since step 12",
    ]
