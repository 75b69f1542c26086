"""Which modules of a model FSDP gathers together."""

import pytest
import torch
from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.model.blocks import find_blocks, listed_blocks
from clustertrain.training.settings import Fsdp, TrainSettings
from training.tasks import Plain

BY_SIZE = TrainSettings(steps=1, batch_size=1, strategy="fsdp")
BY_CLASS = TrainSettings(steps=1, batch_size=1, strategy="fsdp", fsdp=Fsdp(blocks=("Layer",)))


class Layer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.attention(x, x, x)[0])


class Transformer(nn.Module):
    def __init__(self, layers=12, tied=False):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(4, 16))
        self.tokens = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(16, 50, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


def _names(model, settings=BY_SIZE, task=None):
    return [block.name for block in find_blocks(task or Plain(), model, settings)]


class Language(nn.Module):
    """As a decoder: an embedding, blocks, a small norm and a head that may share the embedding's weights."""

    def __init__(self, *, is_tied):
        super().__init__()
        self.embedding, self.layers = nn.Embedding(1000, 16), nn.ModuleList(nn.Linear(16, 16) for _ in "ab")
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 1000, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight


class Layered(Plain):
    def blocks(self, model):
        return model.layers


@pytest.mark.parametrize(("is_tied", "more"), [(False, ["embedding", "head"]), (True, [])])
def test_embedding_and_head_are_groups_of_their_own_unless_they_are_tied(is_tied, more):
    blocks = find_blocks(Layered(), Language(is_tied=is_tied), BY_SIZE)
    assert sorted(block.name for block in blocks) == sorted(["layers.0", "layers.1", *more])


def test_the_size_rule_takes_the_layers_and_leaves_shared_parameters_out():
    layers = [f"layers.{i}" for i in range(12)]
    assert _names(Transformer()) == [*layers, "tokens", "head"]
    assert _names(Transformer(tied=True)) == layers, (
        "tokens and head are one parameter, gathered by the model"
    )
    model = Transformer(tied=True)
    text = listed_blocks(model, find_blocks(Plain(), model, BY_SIZE))
    assert text == "14,304 parameters in blocks: 12 × Layer of 1,120; outside the blocks 864"


def test_the_size_rule_divides_large_modules_but_no_attention():
    assert _names(Transformer(layers=1)) == ["layers.0.attention", "layers.0.norm", "tokens", "head"]
    assert _names(nn.Linear(4, 4)) == []
    assert listed_blocks(nn.Linear(4, 4), []) == (
        "20 parameters without blocks: every rank gathers all of them at once"
    )


def test_the_job_file_comes_before_the_task_and_inner_blocks_before_outer_ones():
    model = nn.Sequential(nn.Sequential(Layer(), Layer()), nn.Linear(16, 2))
    task = Plain()
    task.blocks = lambda model: [model[0], model[0][1], model[1]]
    assert _names(model, task=task) == ["0.1", "0", "1"]
    assert _names(model, BY_CLASS, task) == ["0.0", "0.1", "1"], "the head is one of its own"


def _tied():
    model = nn.Sequential(Layer(), Layer())
    model[1].norm.weight = model[0].norm.weight
    return model


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (_tied, "makes 0 a block of FSDP, but its parameter 0.norm.weight is the same as 1.norm.weight"),
        (lambda: nn.Linear(2, 2), "names the class Layer, and no module of the model is one.\nThe classes"),
    ],
)
def test_a_shared_parameter_and_an_unknown_class_are_refused_by_name(model, what):
    with pytest.raises(JobError) as raised:
        find_blocks(Plain(), model(), BY_CLASS)
    assert what in str(raised.value) and len(str(raised.value).splitlines()) in (2, 3)
