"""The check of a job's code: each mistake has its message; a rehearsal needs data that is here."""

import os
import sys
import tarfile
import textwrap

import pytest
import torch.distributed as dist
import yaml

from clustertrain.supervise.check_process import CheckFolder, CheckRequest
from clustertrain.worker import check

HEAD = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from clustertrain import Task
"""
FINE = """
class Digits(Task):
    def __init__(self, width: int = 3) -> None:
        self.width = width

    def model(self):
        return nn.Linear(4, self.width)

    def train_data(self, data):
        return TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))

    def eval_data(self, data):
        return self.train_data(data)
"""


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Checks a job on the module `mine`, in this process; returns the report."""
    monkeypatch.setattr(check, "collect_rarely", lambda: None)  # this process goes on with other tests
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setattr(check, "_limit_memory", lambda: None)  # of this process
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(text="", *, elsewhere=False, world_size=1, **sections):
        monkeypatch.chdir(tmp_path)
        sys.modules.pop("mine", None)
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / "mine.py").write_text(HEAD + FINE + textwrap.dedent(text))
        job = {
            "name": "a",
            "task": "mine:Digits",
            "train": {"epochs": 1, "batch_size": 4},
            "storage": str(tmp_path / "runs"),
            "code": str(tmp_path / "code"),
        }
        job = {key: value for key, value in {**job, **sections}.items() if value is not None}
        path = tmp_path / "check"
        path.mkdir(exist_ok=True)
        folder = CheckFolder(path)
        folder.request.write(CheckRequest(yaml.safe_dump(job), world_size, elsewhere))
        check.main(str(path))
        report = folder.report.read()
        assert report.ended
        assert not dist.is_initialized()
        return report

    yield run
    sys.modules.pop("mine", None)


def test_code_that_is_right(checked, tmp_path):
    report = checked()
    assert (report.error, report.notes) == ("", [])
    assert report.phase == check.REHEARSAL
    assert not (tmp_path / "code" / "__pycache__").exists()
    assert checked(function="mine:TensorDataset", task=None, train=None).error == ""


MISTAKES = {
    "an error at import": ("1 / 0", {}, ["does not import: ZeroDivisionError", "mine.py:"]),
    "an init that does not find its file": (
        "class Digits(Task):\n    def __init__(self): open('data/labels.csv')",
        {},
        ["FileNotFoundError", "'data/labels.csv' (the working directory is ", "mine.py:"],
    ),
    "an init that ends": (
        "class Digits(Task):\n    def __init__(self, n): raise SystemExit('no')",
        {"args": {"n": 1}},
        ["task: mine:Digits with args ['n'] raised SystemExit: no", "mine.py:"],
    ),
    "a data set that does not pickle": (
        "class Digits(Digits):\n"
        "    def train_data(self, data): return [(torch.zeros(4), 0)] * 8 + [lambda: 0]",
        {"train": {"epochs": 1, "batch_size": 4, "loader_workers": 1}},
        ["train.loader_workers is 1, but the data set cannot be pickled", "loader_workers: 0"],
    ),
}


@pytest.mark.parametrize(("text", "sections", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_reported_with_its_line(checked, text, sections, said):
    report = checked(text, **sections)
    assert report.exit_code == 2
    assert 2 <= len(report.error.splitlines()) <= 4, report.error
    assert "Traceback" not in report.error
    for words in said:
        assert words in report.error, report.error


def test_sanity_false_leaves_the_rehearsal_out(checked):
    narrow = "class Digits(Digits):\n    def model(self): return nn.Linear(5, 3)"
    train = {"epochs": 1, "batch_size": 4, "sanity": False}
    assert checked(narrow, train=train).error == ""
    assert "unexpected keyword argument 'widht'" in checked(narrow, train=train, args={"widht": 1}).error


def test_what_travels_is_pickled_without_the_values_of_its_tensors(checked):
    """8 GB of float32 that were never touched: to pickle them would take memory and seconds."""
    large = """
    class Digits(Digits):
        def train_data(self, data):
            self.large = torch.empty(1 << 31)
            return super().train_data(data)
        def collate(self, samples):
            return torch.utils.data.default_collate(samples)
    """
    assert checked(large, train={"epochs": 1, "batch_size": 4, "loader_workers": 2}).error == ""


def test_user_code_may_call_torch_distributed_and_read_its_rank(checked):
    text = """
    import os
    class Digits(Digits):
        def model(self):
            assert torch.distributed.get_world_size() == 1 and os.environ["RANK"] == "0"
            assert os.getcwd() == os.path.dirname(__file__)
            return super().model()
    """
    assert checked(text).error == ""


READS = """
class Digits(Digits):
    def train_data(self, data):
        assert (data["d"] / "x.txt").read_text() == "data"
        return super().train_data(data)
"""


def test_data_that_is_not_staged_leaves_the_rehearsal_out_with_one_line(checked, tmp_path):
    data = {"d": {"uri": "https://example.org/d.tar", "extract": True}}
    report = checked(READS, data=data)
    assert report.error == ""
    assert report.notes == [
        "the rehearsal was left out, because data is not staged here: d (https://example.org/d.tar). "
        "`clustertrain data fetch JOBFILE` stages it."
    ]


def test_a_local_folder_and_a_small_local_archive_are_used_and_nothing_is_stored(checked, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.txt").write_text("data")
    assert checked(READS, data={"d": {"uri": str(tmp_path / "d")}}).error == ""
    with tarfile.open(tmp_path / "d.tar", "w") as archive:
        archive.add(tmp_path / "d" / "x.txt", "x.txt")
    packed = {"d": {"uri": str(tmp_path / "d.tar"), "extract": True}}
    assert checked(READS, data=packed).error == ""
    assert checked(READS.replace("'data'", "'other'").replace('"data"', '"other"'), data=packed).error != ""
    assert not (tmp_path / "runs").exists()


def test_data_that_is_staged_is_used(checked, tmp_path, monkeypatch):
    from clustertrain.staging.stage import stage
    from clustertrain.storage.location import Location

    monkeypatch.setattr("clustertrain.worker.machine.local_data._UNPACKED_BYTES", 0)  # of any size
    (tmp_path / "x.txt").write_text("data")
    with tarfile.open(tmp_path / "d.tar", "w") as archive:
        archive.add(tmp_path / "x.txt", "x.txt")
    packed = {"d": {"uri": str(tmp_path / "d.tar"), "extract": True}}
    assert "d.tar" in checked(READS, data=packed).notes[0]
    stage("d", Location(str(tmp_path / "d.tar")), sha256=None, extract=True, into=tmp_path / "runs" / "data")
    report = checked(READS, data=packed)
    assert (report.error, report.notes) == ("", [])


def test_what_may_differ_on_another_machine(checked):
    narrow = "class Digits(Digits):\n    def model(self): return nn.Linear(5, 3)"
    gpu = "class Digits(Digits):\n    def model(self): raise RuntimeError('Found no NVIDIA driver')"
    path = "class Digits(Digits):\n    def train_data(self, data): open('/scratch/none')"
    resources = {"workers": 1, "gpus_per_worker": 1}
    assert checked("import no_such_package", elsewhere=True).of_this_machine
    assert checked(path, elsewhere=True).of_this_machine
    assert checked(gpu, elsewhere=True, resources=resources).of_this_machine
    assert not checked(gpu, elsewhere=True).of_this_machine
    assert not checked(narrow, elsewhere=True, resources=resources).of_this_machine
    assert not checked("undefined", elsewhere=True).of_this_machine


def test_settings_that_need_a_gpu_are_rehearsed_without_one_where_the_job_runs_elsewhere(checked):
    train = {"epochs": 1, "batch_size": 4, "precision": "fp16", "sync_batchnorm": True}
    resources = {"workers": 1, "gpus_per_worker": 1}
    assert checked(elsewhere=True, train=train, resources=resources).error == ""


def test_the_loss_gets_the_wrapper_that_the_run_has(checked):
    """With one worker there is none."""
    direct = """
    class Direct(Digits):
        def loss(self, model, batch):
            return torch.nn.functional.cross_entropy(model(batch[0]) + model.bias, batch[1])
    """
    assert checked(direct, task="mine:Direct").error == ""
    report = checked(direct, task="mine:Direct", world_size=2)
    assert report.exit_code == 2 and "reads model.bias, and with several workers" in report.error
    assert "mine.py:" in report.error
