"""Code and data that are changed between two starts are said at the start, in `status` and in the report."""

import json
import re

import pytest

from example_modules import clustertrain

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
