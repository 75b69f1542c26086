"""train.float8: which layers are replaced, and what is refused; torchao itself and a GPU are fakes."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from clustertrain.errors import ClusterError, JobError
from clustertrain.training.model.building import make_model
from clustertrain.training.model.float8 import to_float8
from clustertrain.training.settings import TrainSettings
from training.ranks import ALONE
from training.tasks import Plain

pytestmark = pytest.mark.slow

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


class Own(nn.Linear):
    """A layer with a forward() of its own."""


def _model():
    sizes = {"wide": (1024, 2048), "odd": (1024, 1032), "narrow": (1024, 512)}
    layers = {name: nn.Linear(*size, bias=False, device="meta") for name, size in sizes.items()}
    return nn.ModuleDict(layers | {"own": Own(1024, 1024, device="meta")})


@pytest.fixture
def converted(monkeypatch):
    """The names that torchao is asked to convert, on a GPU of the given compute capability."""
    names = []

    def convert(model, *, module_filter_fn, config):
        assert config == {"pad_inner_dim": True}
        names.extend(name for name, module in model.named_modules() if module_filter_fn(module, name))

    fake = ModuleType("torchao.float8")
    fake.convert_to_float8_training, fake.Float8LinearConfig = convert, dict
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", fake)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    return names


def test_large_linear_layers_are_converted(converted):
    to_float8(_model(), GPU)
    assert converted == ["wide"]


def test_a_rehearsal_without_a_gpu_only_counts(converted):
    to_float8(_model(), CPU)
    assert converted == []


def test_a_gpu_without_float8_is_refused(converted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ClusterError, match=r"8\.9 or newer .*, and NVIDIA A100 has 8\.0\.\n") as caught:
        to_float8(_model(), GPU)
    assert caught.value.exit_code == 3 and converted == []


def test_without_torchao_it_is_refused(converted, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(
        JobError, match=r"needs torchao, which cannot be imported: .*\nInstall .* extra float8"
    ) as caught:
        to_float8(_model(), GPU)
    assert caught.value.exit_code == 2


def test_a_model_without_large_layers_is_refused():
    settings = TrainSettings(steps=1, batch_size=1, precision="bf16", float8=True)
    with pytest.raises(JobError, match=r"Linear has no nn\.Linear inside it with at least 1024 inputs and"):
        make_model(Plain(), settings, ALONE)
