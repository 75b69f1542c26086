"""Normalization layers and the conversions of BatchNorm, against the formulas: values of (N, C, …) less their
mean, divided by the root of their biased variance + eps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.model.normalizing import PerSampleNorm, convert, groups_of
from clustertrain.training.settings import SaveEvery, TrainSettings
from training.tasks import Classify, run_task

CPU, GPU = torch.device("cpu"), torch.device("cuda")
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE_NORM = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
CHANNELS, EPS = 12, 1e-5


def sample_of(dimensions, channels=CHANNELS):
    """(N, C, …) with `dimensions` after the channels, in float64 so that only a wrong formula differs."""
    generator = torch.Generator().manual_seed(dimensions)
    x = torch.randn(3, channels, *range(4, 4 + dimensions), generator=generator, dtype=torch.float64)
    return 2 * x + torch.arange(channels).view(channels, *[1] * dimensions)


def formula(x, over, layer=None, groups=None):
    """x normalized over the dimensions `over`, of (N, G, C/G, …) with groups; then × weight + bias."""
    shape = x.shape
    if groups is not None:
        x = x.reshape(len(x), groups, -1, *shape[2:])
    mean = x.mean(over, keepdim=True)
    variance = (x - mean).square().mean(over, keepdim=True)
    normal = ((x - mean) / (variance + EPS).sqrt()).reshape(shape)
    if layer is None:
        return normal
    per_channel = (-1, *[1] * (len(shape) - 2))
    return normal * layer.weight.view(per_channel) + layer.bias.view(per_channel)


def layer_with_weights(dimensions, channels=CHANNELS):
    layer = BATCH_NORM[dimensions](channels, eps=EPS).double()
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.5, 2, channels))
        layer.bias.copy_(torch.linspace(-1, 1, channels))
    return layer


def close(one, other):
    return torch.allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_the_layers_of_torch_have_the_formulas_of_the_page(dimensions):
    x = sample_of(dimensions)
    space = tuple(range(2, 2 + dimensions))
    assert close(BATCH_NORM[dimensions](CHANNELS).double()(x), formula(x, (0, *space)))
    assert close(INSTANCE_NORM[dimensions](CHANNELS).double()(x), formula(x, space))
    assert close(nn.LayerNorm(x.shape[1:]).double()(x), formula(x, (1, *space)))
    in_groups = tuple(range(2, 3 + dimensions))
    assert close(nn.GroupNorm(3, CHANNELS).double()(x), formula(x, in_groups, groups=3))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("training", [True, False])
def test_the_conversions_have_the_formulas_of_the_page(dimensions, training):
    x = sample_of(dimensions)
    space = tuple(range(2, 2 + dimensions))
    in_groups = tuple(range(2, 3 + dimensions))
    original = layer_with_weights(dimensions)
    assert close(convert(original, "as_is", CPU)(x), formula(x, (0, *space), original))
    for kind, wanted in {
        "group": formula(x, in_groups, original, groups=6),
        "instance": formula(x, space, original),
        "layer": formula(x, (1, *space), original),
    }.items():
        converted = convert(layer_with_weights(dimensions).train(training), kind, CPU)
        assert isinstance(converted, PerSampleNorm) and converted.training == training
        assert close(converted(x), wanted), kind


def test_batch_norm_of_vectors_becomes_layer_norm():
    x = sample_of(0)
    assert close(convert(nn.BatchNorm1d(CHANNELS).double(), "layer", CPU)(x), formula(x, (1,)))


def test_sync_keeps_everything_and_normalizes_by_it_in_evaluation():
    """Its exchange in training needs GPUs: tests/gpu/test_gpu_loop.py."""
    original, x = layer_with_weights(2), sample_of(2)
    original(x)
    converted = convert(nn.Sequential(original), "sync", GPU).eval()[0]
    assert isinstance(converted, nn.SyncBatchNorm)
    assert converted.weight is original.weight and converted.running_mean is original.running_mean
    per_channel = (-1, 1, 1)
    mean, variance = (part.view(per_channel) for part in (original.running_mean, original.running_var))
    weight, bias = (part.view(per_channel) for part in (original.weight, original.bias))
    assert close(converted(x), (x - mean) / (variance + EPS).sqrt() * weight + bias)


class Block(nn.Module):
    """One layer in two places, one without weights, one of SyncBatchNorm, and a list of layers."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.BatchNorm2d(8)
        self.bare = nn.BatchNorm2d(8, affine=False)
        self.more = nn.ModuleList([nn.Conv2d(8, 8, 1), nn.SyncBatchNorm(8)])


def test_every_layer_is_converted_and_its_parameters_stay_the_same():
    model = Block()
    kept = dict(model.named_parameters())
    converted = convert(model, "group", CPU)
    assert converted is model
    assert model.first is model.second and isinstance(model.first, PerSampleNorm)
    assert not [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in kept.items()}
    assert model.bare.weight is None and not model.bare.affine
    assert set(model.state_dict()) == {
        name for name in Block().state_dict() if name.endswith(("weight", "bias"))
    }
    assert model.first(torch.randn(2, 8, 3, 3)).shape == (2, 8, 3, 3)


def test_sync_converts_a_layer_in_two_places_and_keeps_those_that_are_synchronized():
    model = Block()
    own = model.more[1]
    convert(model, "sync", GPU)
    assert model.first is model.second and isinstance(model.first, nn.SyncBatchNorm)
    assert isinstance(model.bare, nn.SyncBatchNorm) and model.more[1] is own


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(64, 32), (256, 32), (48, 24), (32, 16), (6, 3), (3, 1), (2, 1), (1, 1), (33, 11)],
)
def test_groups_have_two_channels_or_more(channels, groups):
    assert groups_of("group", channels) == groups
    assert groups_of("instance", channels) == channels and groups_of("layer", channels) == 1


@pytest.mark.parametrize(
    ("model", "kind", "text"),
    [
        (nn.Linear(2, 2), "group", "is group, but Linear has no BatchNorm layer"),
        (nn.Sequential(nn.LazyBatchNorm1d()), "layer", "channels of LazyBatchNorm1d '0' are not known yet"),
        (nn.BatchNorm1d(2), "sync", "is sync, but this worker runs on cpu"),
    ],
)
def test_what_cannot_be_converted_is_refused(model, kind, text):
    with pytest.raises(JobError, match=text) as error:
        convert(model, kind, CPU)
    assert len(str(error.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("kind", "arithmetic", "always"),
    [
        ("instance", r"'0' gets \(5, 6\): 6 values of a sample / 6 groups = 1\.", "normalize to 0"),
        ("group", r"'0' gets \(5, 6\): 6 values of a sample / 3 groups = 2\.", r"normalize to \+1 and -1"),
    ],
)
def test_groups_that_are_too_small_are_refused_with_the_arithmetic(kind, arithmetic, always):
    model = convert(nn.Sequential(nn.BatchNorm1d(6)), kind, CPU)
    with pytest.raises(JobError, match=f"(?s){arithmetic}.*{always}.*Use layer"):
        model(torch.randn(5, 6))
    assert model(torch.randn(5, 6, 4)).shape == (5, 6, 4)


def test_a_run_trains_saves_and_resumes_the_converted_model(ranks):
    settings = TrainSettings(steps=4, batch_size=4, normalization="group", save_every=SaveEvery(steps=2))
    whole = ranks(2).results(run_task, Classify(), settings)[0]
    assert {name for name in whole.weights() if "running" in name} == set()
    resumed = ranks(2).results(run_task, Classify(), settings, whole.saves[2])[0]
    assert all(torch.equal(resumed.weights()[name], value) for name, value in whole.weights().items())
    with pytest.raises(JobError, match="running_mean"):  # the checkpoint of another normalization
        ranks(2).results(run_task, Classify(), replace(settings, normalization="as_is"), whole.saves[2])
