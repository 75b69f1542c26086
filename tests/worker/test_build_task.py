"""The loss and the metrics that a job file names: created with their arguments, and given to the task."""

from __future__ import annotations

import random
import sys
import textwrap

import pytest
import torch
import yaml
from torch.nn import functional

from clustertrain.errors import JobError
from clustertrain.job.file import dump_job, load_job, parse_job
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.task import Task
from clustertrain.worker.code.build_task import make_task
from clustertrain.worker.code.user_code import check_task
from clustertrain.worker.train import settings_of

CODE = """
    import random
    import numpy
    import torch
    from clustertrain import Task

    def total(outputs, targets, scale=1.0):
        return scale * ((outputs - targets) ** 2).mean()

    def share(outputs, targets, *, of):
        return (outputs.argmax(1) == of).float().mean()

    class Learned(torch.nn.Linear):
        def __init__(self):
            super().__init__(1, 1)

    class Plain(Task):
        def model(self):
            return torch.nn.Linear(4, 3)

        def train_data(self, data):
            x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
            return torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))

        eval_data = train_data

    class Own(Plain):
        def loss(self, model, batch):
            return model(batch[0]).mean()

        def metrics(self):
            return {}

    class Drawing(Plain):
        def __init__(self):
            self.drawn = random.random(), numpy.random.rand(), torch.rand(1).item()

    NUMBER = 5
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes a job with these keys of train, on a task of the module `mine`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(textwrap.dedent(CODE))

    def make(task="Plain", **train):
        sections = {"name": "a", "task": f"mine:{task}", "train": {"epochs": 1, "batch_size": 4, **train}}
        return parse_job(yaml.safe_dump(sections), "job.yaml")

    yield make
    sys.modules.pop("mine", None)


def made(job):
    return make_task(check_task(job.task), job)


def reported(job):
    """The names and the loss that a rehearsal of the job reports."""
    return rehearse(made(job), settings_of(job), torch.device("cpu"), {})


def test_what_init_draws_is_that_of_the_seed_in_a_run_and_in_the_check_of_its_code(job):
    drawn = [made(job("Drawing", seed=seed)).drawn for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] and not {*drawn[0]} & {*drawn[2]}
    assert drawn[0][0] == random.Random(3).random()


def test_without_names_the_loss_is_cross_entropy_and_the_metric_accuracy(job):
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    task = made(job())
    assert torch.equal(task.criterion(outputs, targets), functional.cross_entropy(outputs, targets))
    assert reported(job()) == ("loss", "accuracy")


def test_a_class_gets_its_args_when_it_is_created_and_a_function_when_it_is_called(job):
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    smooth = {"class": "torch.nn.CrossEntropyLoss", "args": {"label_smoothing": 0.1}}
    expected = functional.cross_entropy(outputs, targets, label_smoothing=0.1)
    assert torch.equal(made(job(loss=smooth)).criterion(outputs, targets), expected)
    assert reported(job(loss=smooth)) == ("loss", "accuracy")
    scaled = made(job(loss={"class": "mine.total", "args": {"scale": 3.0}})).criterion
    assert scaled(torch.tensor([2.0]), torch.tensor([0.0])) == 12
    assert Task.criterion(outputs, targets) != expected, "the default of the class stays as it is"


def test_another_loss_reports_no_accuracy(job):
    assert made(job(loss="torch.nn.MSELoss")).metrics() == {}


def test_metrics_replace_the_accuracy_and_are_computed(job):
    metrics = {
        "miou": {"class": "torchmetrics.JaccardIndex", "args": {"task": "multiclass", "num_classes": 3}},
        "share": {"class": "mine.share", "args": {"of": 1}},
    }
    assert reported(job(metrics=metrics)) == ("loss", "miou", "share")


@pytest.mark.parametrize(
    ("key", "part", "at", "said"),
    [
        ("loss", "torch.nn.CrosEntropyLoss", ["class"], "Did you mean 'CrossEntropyLoss'?"),
        ("loss", "torchh.nn.MSELoss", ["class"], "No module named 'torchh'"),
        ("loss", "mine.NUMBER", ["class"], "is 5, which cannot be called"),
        ("loss", "mine.Learned", ["class"], "has parameters of its own, which would not be trained"),
        ("loss", "torchmetrics.MeanMetric", None, ""),
        (
            "loss",
            "collections.OrderedDict",
            ["class"],
            "an object of collections.OrderedDict cannot be called",
        ),
        (
            "loss",
            {"class": "torch.nn.CrossEntropyLoss", "args": {"label_smothing": 0.1}},
            ["args", "label_smothing"],
            "does not take 'label_smothing'; did you mean 'label_smoothing'?\nIt takes: weight=None, ",
        ),
        (
            "metrics",
            {"class": "torchmetrics.JaccardIndex", "args": {"num_classes": 3}},
            ["args"],
            "missing 1 required positional argument: 'task'",
        ),
        (
            "metrics",
            {"class": "torchmetrics.JaccardIndex", "args": {"task": "multiclas", "num_classes": 3}},
            ["args"],
            "but got multiclas",
        ),
        ("metrics", "mine.share", ["args"], "missing a required argument: 'of'"),
        ("metrics", {"class": "mine.share", "args": {"off": 1}}, ["args", "off"], "did you mean 'of'?"),
    ],
)
def test_a_wrong_name_or_argument_names_the_key(job, key, part, at, said):
    wrong = job(**{key: part if key == "loss" else {"m": part}})
    if at is None:  # a metric can be called: that it is no loss shows only in the rehearsal
        assert made(wrong)
        return
    with pytest.raises(JobError) as caught:
        made(wrong)
    prefix = ["train", "loss"] if key == "loss" else ["train", "metrics", "m"]
    assert list(caught.value.at) == prefix + at
    assert said in str(caught.value)
    assert str(caught.value).startswith(".".join(prefix))
    assert len(str(caught.value).splitlines()) <= 3


@pytest.mark.parametrize(("key", "part"), [("loss", "torch.nn.MSELoss"), ("metrics", {"m": "mine.total"})])
def test_a_task_with_its_own_method_refuses_the_key(job, tmp_path, key, part):
    with pytest.raises(JobError) as caught:
        made(job("Own", **{key: part}))
    assert caught.value.at == ("train", key)
    assert f"train.{key} is given, and Own has its own method {key}." in str(caught.value)
    assert f"{tmp_path}/mine.py:" in str(caught.value)


def test_a_frozen_dataclass_takes_them(job, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom clustertrain import Task\n"
        "@dataclass(frozen=True)\nclass Plain(Task):\n    lr: float = 0.1\n"
    )
    assert type(made(job(loss="torch.nn.MSELoss")).criterion).__name__ == "MSELoss"


FILE = """\
name: a
task: mine:Plain
train:
  epochs: 1
  batch_size: 4
  loss: LOSS
"""


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            "{class: mse}",
            "job.yaml:6:17: train.loss.class: 'mse' is not accepted\nmust be package.module.Name",
        ),
        ("mine:total", "job.yaml:6:9: train.loss: 'mine:total' is not accepted"),
        (
            "{clas: torch.nn.MSELoss}",
            "train.loss: unknown key 'clas' (the first of 2 problems)\ndid you mean 'class'?",
        ),
        ("{class: a.b, args: [1]}", "job.yaml:6:28: train.loss.args: a list is not accepted"),
    ],
)
def test_what_the_text_shows_is_an_error_of_the_file(tmp_path, loss, said):
    path = tmp_path / "job.yaml"
    path.write_text(FILE.replace("LOSS", loss))
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert said in str(caught.value)


def test_a_metric_cannot_be_called_loss(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(FILE.partition("  loss")[0] + "  metrics: {loss: mine.total}\n")
    with pytest.raises(JobError, match=r"job\.yaml:6:13: train\.metrics\.loss: every evaluation reports"):
        load_job(path)


def test_a_name_without_arguments_is_the_same_as_a_mapping(job):
    short, long = job(loss="torch.nn.MSELoss"), job(loss={"class": "torch.nn.MSELoss", "args": {}})
    assert short == long
    assert parse_job(dump_job(short), "job.yaml") == short
