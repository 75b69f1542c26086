"""train.compile: the weights of a compiled model, and a node without a compiler."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from clustertrain.errors import ClusterError
from clustertrain.training.model.building import wrap
from clustertrain.training.model.compiling import limit_recompiles, options_of
from clustertrain.training.settings import Compile, TrainSettings
from training.ranks import ALONE
from training.tasks import Plain, run_task

# torch's own: its compiler imports modules that use what torch has deprecated
pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"), pytest.mark.slow]

SETTINGS = TrainSettings(steps=1, batch_size=1, compile=Compile())


def test_a_compiled_model_is_trained_to_the_same_weights(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    settings = TrainSettings(steps=4, batch_size=4)
    torch.compiler.reset()
    compiled = run_task(ALONE, Curve(), replace(settings, compile=Compile())).weights()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "the model was compiled"
    plain = run_task(ALONE, Curve(), settings).weights()
    assert compiled.keys() == plain.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert all(torch.allclose(compiled[name], value, atol=1e-6) for name, value in plain.items())


def test_the_job_chooses_how():
    assert options_of(SETTINGS.compile) == {"dynamic": False, "mode": None}
    chosen = Compile(True, "reduce-overhead")
    assert options_of(chosen) == {"dynamic": True, "mode": "reduce-overhead"}


class Curve(Plain):
    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


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
    return wrap(Plain(), nn.Linear(2, 1), SETTINGS, replace(ALONE, device=torch.device(device)))


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


def test_a_model_with_more_shapes_than_the_limit_has_one_note(monkeypatch):
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    notes = []
    for _ in range(2):  # the second run in a process has notes of its own
        torch.compiler.reset()
        notes.clear()
        limit_recompiles(Compile(recompile_limit=3), notes.append)
        model = torch.compile(nn.Linear(2, 1), backend="eager", dynamic=False)
        for size in range(2, 5):
            model(torch.zeros(size, 2))
        assert notes == []
        for size in range(5, 8):
            model(torch.zeros(size, 2))
    (note,) = notes
    assert note.startswith(
        "torch.compile has compiled the model for 3 shapes, its limit, and runs it uncompiled"
    )
