import random
import sys
import textwrap
from pathlib import Path

import pytest

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job
from clustertrain.node import variables
from clustertrain.worker.code.user_code import check_code, check_function, check_task, enter_code, make_task


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Writes the module `mine` and makes it importable."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)

    def write(text):
        (tmp_path / "mine.py").write_text(textwrap.dedent(text))

    yield write
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", ["SyntaxError", "mine.py:1"]),
        ("import sys\nsys.exit('usage')\n", ["SystemExit: usage", "mine.py:2"]),
        ("import json\ndef f():\n    json.loads('x')\nf()\n", ["JSONDecodeError", "mine.py:3 in f"]),
        ("import clustertrain\nclustertrain.run({})\n", ["mine:Task starts a run", "mine.py:2"]),
        ("Other = int\n", ["names 'Task'", "It has: Other"]),
        ("Task = 5\n", ["is 5, not a subclass"]),
        ("Tusk = int\n", ["Did you mean 'Tusk'?"]),
        (
            "import clustertrain\nclass Task(clustertrain.Task):\n    sampler = 3\n"
            "    def validation_step(self, model, batch): ...\n    def train_dataloader(self): ...\n",
            ["never calls: train_dataloader, validation_step", "train_data(data), eval_step(model, batch)"],
        ),
        (
            "import clustertrain\nclass Base:\n    def configure_optimizers(self): ...\n"
            "class Task(clustertrain.Task, Base): ...\n",
            ["configure_optimizers", "optimizer(model) and scheduler(optimizer, total_steps)", "mine.py:3"],
        ),
    ],
)
def test_a_class_that_is_no_task_is_named_with_its_place(code, text, said):
    code(text)
    with pytest.raises(JobError) as caught:
        check_task("mine:Task")
    for part in said:
        assert part in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3


def test_an_import_that_storage_or_network_ended_is_not_the_jobs_mistake(code):
    code("raise ConnectionResetError(104, 'Connection reset by peer')\n")
    with pytest.raises(ConnectionResetError):
        check_task("mine:Task")


def test_a_module_that_is_not_there(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError) as caught:
        check_task("mine:Task")
    assert "No module named 'mine'" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def job(**sections):
    import yaml

    return parse_job(yaml.safe_dump({"name": "a", **sections}), "job.yaml")


def test_an_error_without_a_line_of_the_code_names_its_folder(code):
    code(
        "from abc import ABC, abstractmethod\nfrom clustertrain import Task as Base\n"
        "class Task(Base, ABC):\n    @abstractmethod\n    def depth(self): ...\n"
    )
    right = job(task="mine:Task", train={"epochs": 1, "batch_size": 1})
    with pytest.raises(JobError) as caught:
        make_task(check_task("mine:Task"), right)
    assert str(caught.value).endswith(f"\nAt `code`, the folder {Path.cwd()}.")


def test_the_code_comes_first_on_the_path_also_if_the_path_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/other", str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.delenv(variables.CODE, raising=False)
    monkeypatch.chdir("/")
    (tmp_path / "mine.py").write_text("def train(config): ...\n")
    enter_code(job(function="mine:train", code=str(tmp_path)))
    assert sys.path[:2] == [str(tmp_path), "/other"]
    assert Path.cwd() == tmp_path


HEAD = "from clustertrain import Task as Base\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("class Task(Base):\n    def __init__(self, n, *, m=3): pass\n", 3),
        ("from dataclasses import dataclass\n@dataclass\nclass Task(Base):\n    n: int\n    m: int = 3\n", 3),
        ("class Other(Base):\n    def __init__(self, n, m=3): pass\nclass Task(Other):\n    pass\n", 3),
    ],
    ids=["its own", "a dataclass", "a base class"],
)
def test_the_parameters_of_a_class_that_was_imported(code, text, line):
    code(HEAD + text)
    for args, said in [
        ({"n": 1, "mm": 2}, "Task: got an unexpected keyword argument 'mm'."),
        ({"m": 2}, "Task: missing a required argument: 'n'."),
    ]:
        with pytest.raises(JobError) as caught:
            check_code(job(task="mine:Task", train={"epochs": 1, "batch_size": 1}, args=args))
        first, takes, where = str(caught.value).splitlines()
        assert (first, takes) == (f"args: {said}", "It takes: n, m.")
        assert where.endswith(f"mine.py:{line}.")
    check_code(job(task="mine:Task", train={"epochs": 1, "batch_size": 1}, args={"n": 3}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train = 5\n", ["cannot be called"]),
        ("def train(): pass\n", ["takes (), but it is called with one argument", "mine.py:1."]),
        ("def train(config):\n    yield 1\n", ["contains yield: a call runs none of its code", "mine.py:1."]),
        ("async def train(config): pass\n", ["is async: a call runs none of its code"]),
    ],
)
def test_a_function_that_cannot_be_called_with_one_argument(code, text, said):
    code(text)
    with pytest.raises(JobError) as caught:
        check_code(job(function="mine:train"))
    assert [part for part in said if part not in str(caught.value)] == []


def test_a_function_that_takes_one_argument(code):
    code("def fits(config, rank=0): pass\nlength = len\n")
    assert check_function("mine:fits").__name__ == "fits"
    check_code(job(function="mine:length"))


DRAWING = """
    import random
    import numpy
    import torch
    from clustertrain import Task

    class Drawing(Task):
        def __init__(self):
            self.drawn = random.random(), numpy.random.rand(), torch.rand(1).item()
"""


def test_what_init_draws_is_that_of_the_seed_in_a_run_and_in_the_check_of_its_code(code):
    code(DRAWING)

    def drawn(seed):
        train = f"train: {{epochs: 1, batch_size: 4, seed: {seed}}}"
        job = parse_job(f"name: a\ntask: mine:Drawing\n{train}\n", "job.yaml")
        return make_task(check_task(job.task), job).drawn

    assert drawn(3) == drawn(3) and not {*drawn(3)} & {*drawn(4)}
    assert drawn(3)[0] == random.Random(3).random()
