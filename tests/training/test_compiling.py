"""train.compile: the weights of a compiled model, and one with more shapes than the limit."""

from dataclasses import replace

import pytest
import torch
from torch import nn

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


def test_the_keys_of_train_compile_are_the_arguments_of_torch_compile():
    assert options_of(SETTINGS.compile) == {"dynamic": False, "mode": "default"}
    chosen = Compile(True, "reduce-overhead")
    assert options_of(chosen) == {"dynamic": True, "mode": "reduce-overhead"}


class Curve(Plain):
    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


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
