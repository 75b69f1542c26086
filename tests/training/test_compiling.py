"""Compilers for torch.compile: test_language_model.py trains a compiled model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clustertrain.errors import ClusterError
from clustertrain.training.building import wrap
from clustertrain.training.distributed import RankInfo
from clustertrain.training.settings import TrainSettings

# torch's own: its compiler imports modules that use what torch has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

SETTINGS = TrainSettings(steps=1, batch_size=1, compile=True)


@pytest.fixture
def compilers(tmp_path, monkeypatch):
    """`compilers("gcc")`: the PATH has these programs only; neither CC nor CXX is set."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)

    def install(*names):
        for name in names:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)

    return install


def wrapped_on(device):
    return wrap(nn.Linear(2, 1), SETTINGS, RankInfo(0, 0, 1, torch.device(device)))


@pytest.mark.parametrize(
    ("device", "others", "named", "install"),
    [
        ("cpu", ("gcc", "clang"), ("a C++ compiler", "g++ is not on the PATH"), "g++"),
        ("cuda", ("g++",), ("a C compiler", "gcc or clang is not on the PATH"), "gcc"),
    ],
)
def test_a_node_without_a_compiler_is_named_before_the_first_step(compilers, device, others, named, install):
    compilers(*others)
    with pytest.raises(ClusterError) as error:
        wrapped_on(device)
    lines = str(error.value).splitlines()
    assert len(lines) == 2 and error.value.exit_code == 3
    assert all(text in lines[0] for text in named)
    assert lines[1].startswith(f"Install {install}, ") and "train.compile: false" in lines[1]


@pytest.mark.parametrize(("device", "found"), [("cpu", "g++"), ("cuda", "gcc"), ("cuda", "clang")])
def test_a_compiler_on_the_path_is_enough(compilers, device, found):
    compilers(found)
    assert isinstance(wrapped_on(device), torch._dynamo.OptimizedModule)


def test_the_compiler_of_the_environment_is_the_one_that_counts(compilers, monkeypatch):
    compilers("g++", "mine")
    monkeypatch.setenv("CXX", "other")
    with pytest.raises(ClusterError, match="CXX=other is not on the PATH"):
        wrapped_on("cpu")
    monkeypatch.setenv("CXX", "mine")
    wrapped_on("cpu")


def test_a_model_that_is_not_compiled_needs_no_compiler(compilers):
    model = nn.Linear(2, 1)
    settings = TrainSettings(steps=1, batch_size=1)
    assert wrap(model, settings, RankInfo(0, 0, 1, torch.device("cpu"))) is model
