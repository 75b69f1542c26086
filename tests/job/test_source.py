"""What the text of the user's code shows, without an import: one test for each mistake, with its message."""

import textwrap

import pytest

from clustertrain.errors import JobError
from clustertrain.job.source import check_source

TASK = """
from clustertrain import Task


class Digits(Task):
    def __init__(self, lr: float, width: int = 64, *, name: "str | None" = None) -> None:
        self.lr = lr


def train(config):
    pass
"""


@pytest.fixture
def check(job, tmp_path):
    """Checks a job on the module `mine`; returns the lines of the refusal."""

    def check(text=TASK, args=None, **sections):
        (tmp_path / "mine.py").write_text(textwrap.dedent(text))
        sections = sections or {"task": "mine:Digits"}
        if "task" not in sections:
            sections |= {"task": None, "train": None}
        try:
            check_source(job(args={"lr": 0.1} if args is None else args, **sections))
        except JobError as error:
            return str(error).replace(str(tmp_path), "CODE").splitlines()
        return []

    return check


def test_code_that_is_right(check):
    assert check() == []
    assert check(args={"lr": 1, "width": 3, "name": None}) == []
    assert check(function="mine:train") == []
    assert check(script="mine.py", args=[]) == []


def test_a_module_that_is_not_there(check):
    assert check(task="mien:Digits") == [
        "task: mien:Digits: there is neither mien/__init__.py nor mien.py in CODE, and no installed package "
        "mien.",
        "A module is named by its path below `code`, with dots, without .py.",
    ]
    assert "neither mine/inner/__init__.py nor mine/inner.py" in check(task="mine.inner:Digits")[0]


@pytest.mark.parametrize(
    "sections", [{"task": "pydantic:BaseModel"}, {"task": "far.away:T", "image": "registry.io/a:1"}]
)
def test_a_module_that_is_installed_here_or_may_be_in_the_image_is_left_to_the_import(check, sections):
    assert check(**sections) == []


def test_a_file_that_is_not_python(check):
    assert check("def broken(:\n    pass\n") == [
        "task: mine:Digits is not valid Python: invalid syntax",
        "At CODE/mine.py:1:12: def broken(:",
    ]
    assert (
        check("if:\n", script="mine.py", args=[])[0] == "script: mine.py is not valid Python: invalid syntax"
    )
    assert "source code string cannot contain null bytes" in check("a = '\0'")[0]


def test_a_class_that_is_not_there(check):
    assert check(task="mine:Digit") == [
        "task: mine:Digit names 'Digit', which CODE/mine.py does not have.",
        "It defines: Digits, train.",
    ]
    assert check("x = 1\n")[1] == "It defines: nothing."


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere import Digits\n",
        "from elsewhere import *\n",
        "Digits = make()\n",
        "try:\n    from fast import Digits\nexcept ImportError:\n    class Digits: pass\n",
        "def __getattr__(name): ...\n",
        "if True:\n    class Digits(Base): pass\n",
    ],
)
def test_a_name_whose_definition_the_text_does_not_show_is_left_to_the_import(check, text):
    assert check(text, args={"unknown": 1}) == []


LOOP = """
    import ray.train
    def loop(config):
        if ray.train.get_checkpoint(): pass
        ray.train.report({"loss": 1.0}, checkpoint=None)
"""
REPORTS = """
    from ray import train as rt
    def loop(config):
        keep(rt)
    def keep(rt_):
        rt.report({"loss": 1.0}, rt.Checkpoint("d"))
"""


@pytest.mark.parametrize(
    ("text", "call", "line"), [(LOOP, "ray.train.get_checkpoint", 4), (REPORTS, "rt.report", 6)]
)
def test_a_function_that_leaves_its_checkpoints_to_ray_train(check, text, call, line):
    assert check(text, function="mine:loop", args={}) == [
        f"function: mine:loop leaves its checkpoints to {call}: they would be kept nowhere, and the next "
        "start would begin anew.",
        "Write session.save(…) and session.restore() of clustertrain.session.current() in its place.",
        f"At CODE/mine.py:{line}.",
    ]


TRAINER = """
    from ray.train.torch import TorchTrainer as Trainer
    def loop(config): pass
    if __name__ == "__main__":
        Trainer(train_loop_per_worker=loop).fit()
"""
TUNER = """
    import ray.tune as tune
    from package.loops import loop
    def main():
        tuner = tune.Tuner(loop)
        tuner.fit()
    main()
"""


@pytest.mark.parametrize("entry", [{"script": "mine.py"}, {"module": "mine"}])
@pytest.mark.parametrize(
    ("text", "call"),
    [(TRAINER, "Trainer"), (TUNER, "tune.Tuner")],
)
def test_a_script_that_starts_its_ranks_with_ray_train(check, entry, text, call):
    what = " ".join(f"{key}: {value}" for key, value in entry.items())
    first, remedy, place = check(text, **entry, args=[])
    assert first == (
        f"{what} starts a {call}: each worker would start a Ray of its own and train the whole job."
    )
    assert "each worker runs that, with session.save(…)" in remedy
    assert place.startswith("At CODE/mine.py:")


@pytest.mark.parametrize(
    "text",
    [
        'import ray.train\ndef loop(config):\n    """ray.train.report(checkpoint=c)"""  # Trainer().fit()',
        "import ray.train\ndef loop(config): ray.train.report({'loss': 1.0})",
        "import ray.train\ndef loop(config): ray.train.report({'loss': 1.0}, checkpoint=None)",
        "import ray.train\ndef with_ray(config): ray.train.get_checkpoint()\ndef loop(config): pass",
        "from ray.train.torch import TorchTrainer\ndef f(): TorchTrainer(loop).fit()\ndef loop(config): 1",
        "from transformers import Trainer\ndef loop(config): Trainer(model=None).fit()\nloop({})",
        "from other import report, get_checkpoint\ndef loop(config): report({}, checkpoint=get_checkpoint())",
    ],
)
def test_code_that_only_mentions_ray_train(check, text):
    assert check(text, function="mine:loop", args={}) == []
    assert check(text, script="mine.py", args=[]) == []


def test_a_script_that_is_not_there(check):
    assert check(script="mien.py", args=[]) == [
        "script: mien.py does not exist in CODE.",
        "The path is relative to `code`.",
    ]


def test_a_module_for_python_m(check, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "train.py").write_text("print('trains')\n")
    assert check(module="mine", args=[]) == check(module="package.train", args=[]) == []
    assert check(module="torch.distributed.run", args=[]) == []  # installed
    assert check(module="package.trian", args=[])[0] == (
        "module: package.trian: there is neither package/trian/__main__.py nor package/trian.py in CODE, "
        "and no installed package package."
    )
    (package / "__init__.py").touch()
    assert "neither package/__main__.py nor package.py" in check(module="package", args=[])[0]
    (package / "__main__.py").write_text("if:\n")
    assert check(module="package", args=[])[0] == "module: package is not valid Python: invalid syntax"


def test_the_syntax_of_another_python_is_left_to_it(check):
    newer = "type Vector = list[float]\n"  # of Python 3.12
    own = {"script": "mine.py", "args": [], "interpreter": "/envs/newer/bin/python"}
    assert check(newer, **own) == []
    assert check(newer, **{**own, "script": None, "module": "mine"}) == []
    assert check(**{**own, "script": None, "module": "installed.there"}) == []


def test_code_in_several_folders(check, job, tmp_path):
    (tmp_path / "lib" / "inner").mkdir(parents=True)
    (tmp_path / "lib" / "inner" / "other.py").write_text(TASK)
    both = {"code": [str(tmp_path), str(tmp_path / "lib")]}
    assert check(task="inner.other:Digits", **both) == []
    assert check(module="inner.other", args=[], **both) == []
    assert "nor inner/ohter.py in CODE or CODE/lib, and" in check(task="inner.ohter:Digits", **both)[0]
    assert check(script="inner/other.py", args=[], **both) == [
        "script: inner/other.py does not exist in CODE.",
        "The path is relative to the first folder of `code`.",
    ]


def test_a_folder_that_is_not_there(job, tmp_path):
    with pytest.raises(JobError, match="is not a folder"):
        check_source(job(code=str(tmp_path / "none")))
