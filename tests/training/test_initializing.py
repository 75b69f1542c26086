"""Initial weights by Task.init_weights: the same for any strategy and number of ranks, a block at a time."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.model.building import make_model
from clustertrain.training.model.initializing import without_parameters
from clustertrain.training.ranks.dtensors import is_divided
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import SaveEvery, TrainSettings
from training.ranks import ALONE
from training.tasks import Plain, run_task

SETTINGS = TrainSettings(steps=1, batch_size=4, seed=5, save_every=SaveEvery(steps=1))


class Net(nn.Module):
    """A tie, a row that `weight[3].fill_(0)` sets, a parameter of the model itself, a buffer with values."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.words.weight
        self.kinds = nn.Embedding(12, 8, padding_idx=3)
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU()) for _ in range(3))
        )
        self.scale = nn.Parameter(torch.full((8,), 3.0))
        self.scale.is_scale = True
        self.register_buffer("positions", torch.arange(4.0)[:, None])

    def forward(self, x):
        words = self.words(x.long().abs() % 12) + self.kinds(x.long().abs() % 2) + self.positions
        return self.head(self.layers(words) * self.scale).sum(1).mean(1, keepdim=True)


class Initialized(Plain):
    """Remembers how many elements are whole at a time, and the state of the generator after model()."""

    def __init__(self) -> None:
        super().__init__(lr=0.0)
        self.most_elements, self.marked = 0, False

    def model(self):
        self.net = Net()
        return self.net

    def blocks(self, model):
        return list(model.layers)

    def init_weights(self, module, name):
        if name == "":
            self.marked = module.scale.is_scale
            nn.init.normal_(module.scale)
        elif name.endswith(".2"):
            nn.init.orthogonal_(module.weight)
            nn.init.zeros_(module.bias)
        else:
            module.reset_parameters()
        whole = {id(p): p.numel() for p in self.net.parameters() if not p.is_meta and not is_divided(p)}
        self.most_elements = max(self.most_elements, sum(whole.values()))


def _weights(rank_info, settings):
    task = Initialized()
    outcome = run_task(rank_info, task, settings)
    return outcome.weights(), task.most_elements, task.marked


def test_the_weights_are_those_of_ddp_for_any_number_of_ranks(ranks):
    expected, everything, marked = _weights(ALONE, SETTINGS)
    assert everything == sum(p.numel() for p in Net().parameters()) and marked
    assert not expected["kinds.weight"][3].any() and expected["kinds.weight"][4].any()
    assert torch.equal(expected["head.weight"], expected["words.weight"])
    assert torch.equal(expected["positions"], torch.arange(4.0)[:, None])
    first, second = (expected[f"layers.{n}.0.weight"] for n in (0, 1))
    assert not torch.equal(first, second), "each module has random numbers of its own"
    block = 2 * (8 * 8 + 8)
    for world_size in (2, 3):
        for strategy in ("ddp", "fsdp"):
            settings = replace(SETTINGS, strategy=strategy)
            for found, most, marked in ranks(world_size).results(_weights, settings):
                assert found.keys() == expected.keys() and marked
                for name in found:
                    assert torch.equal(found[name], expected[name]), (strategy, world_size, name)
                assert most == (everything if strategy == "ddp" else block), "FSDP: one block at a time"


def test_the_random_numbers_after_the_model_do_not_depend_on_the_strategy():
    torch.manual_seed(1)
    make_model(Initialized(), SETTINGS, ALONE)
    after = torch.rand(1)
    torch.manual_seed(1)
    with without_parameters():
        Net()
    assert torch.equal(torch.rand(1), after)


class Forgetful(Initialized):
    def init_weights(self, module, name):
        if name:
            module.reset_parameters()


class Partial(Initialized):
    def init_weights(self, module, name):
        for parameter in module.parameters(recurse=False):
            parameter[:1].fill_(1.0)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (Forgetful, "Forgetful.init_weights() leaves scale of Net without values"),
        (Partial, "Partial.init_weights() leaves words.weight of Embedding without values"),
    ],
)
def test_a_parameter_that_is_not_set_is_refused(ranks, task, text):
    with pytest.raises(JobError) as caught:
        rehearse(task(), SETTINGS, torch.device("cpu"), {}, world_size=2)
    assert text in str(caught.value) and "test_initializing.py:" in str(caught.value)
    for answer in ranks(2).call(run_task, task(), replace(SETTINGS, strategy="fsdp")):
        assert isinstance(answer, JobError)
        assert ".init_weights() leaves " in str(answer)
        assert "remove init_weights: then model() sets all of them." in str(answer)
