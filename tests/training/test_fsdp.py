"""train.strategy: fsdp gives what DDP gives, with each rank holding a part of the model, block by block."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from clustertrain.errors import ClusterError, JobError
from clustertrain.training.model.blocks import find_blocks, listed_blocks
from clustertrain.training.model.sharding import ranks_per_node
from clustertrain.training.settings import Ddp, EvalEvery, Fsdp, LearningRate, TrainSettings
from training.ranks import ALONE
from training.tasks import Classify, Plain, run_task

SETTINGS = TrainSettings(
    steps=50,
    batch_size=4,
    seed=3,
    clip_norm=1.0,
    lr=LearningRate(warmup_steps=4),
    log_every=1,
    eval_every=EvalEvery(steps=25),
)


class Evaluated(Classify):
    """55 evaluation samples in batches of 4: of three ranks, one has another number of batches."""

    def eval_data(self, data):
        return self.train_data(data)

    def eval_step(self, model, batch):
        x, y, _ = batch
        outputs = model(x)
        return nn.functional.cross_entropy(outputs, y), outputs, y

    def scheduler(self, optimizer, total_steps):
        return None


class BatchNormalized(Evaluated):
    """Dropout, and the running values of BatchNorm, which evaluation uses."""

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)


class Normalized(Evaluated):
    """LayerNorm and AdamW. With BatchNorm AdamW would turn rounding errors into steps: the gradient of a bias
    before it is zero, and AdamW divides it by its own size."""

    def model(self):
        return nn.Sequential(
            nn.Linear(6, 33), nn.LayerNorm(33), nn.GELU(), nn.Linear(33, 17), nn.GELU(), nn.Linear(17, 3)
        )

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3)


@pytest.mark.parametrize(
    ("task", "world_size", "accumulate"),
    [(Normalized, 2, 1), (Normalized, 3, 1), (Normalized, 3, 2), (BatchNormalized, 2, 1)],
)
def test_fifty_steps_have_the_losses_of_ddp(ranks, task, world_size, accumulate):
    group, batch_size = ranks(world_size), 12 if task is BatchNormalized else 4
    settings = replace(SETTINGS, accumulate=accumulate, batch_size=batch_size)
    ddp = group.results(run_task, task(55), settings)
    fsdp = group.results(run_task, task(55), replace(settings, strategy="fsdp"))
    for kind, key in (("train", "loss"), ("train", "grad_norm"), ("eval", "loss")):
        expected, found = ddp[0].logged(kind, key), fsdp[0].logged(kind, key)
        assert len(expected) == (50 if kind == "train" else 2)
        assert found == pytest.approx(expected, rel=0, abs=1e-6)
    for name, weight in ddp[0].weights().items():
        torch.testing.assert_close(fsdp[0].weights()[name], weight, rtol=0, atol=1e-5)
    assert fsdp[0].ids == ddp[0].ids
    notes = fsdp[0].logged("note", "text")
    assert notes[0].startswith(f"FSDP (full, {world_size} ranks): ")
    assert " parameters in blocks: " in notes[0]


def _short(rank_info, task, settings):
    """Each rank is on a node of its own."""
    settings = replace(settings, steps=6, eval_every=EvalEvery())
    return run_task(replace(rank_info, local_rank=0), task, settings)


def test_in_bf16_the_losses_are_near_those_of_ddp(ranks):
    bf16 = replace(SETTINGS, accumulate=2, precision="bf16")
    low, ddp_low, full = (
        ranks(2).results(_short, BatchNormalized(54), settings)[0].logged("train")
        for settings in (replace(bf16, strategy="fsdp"), bf16, replace(bf16, precision="fp32"))
    )
    assert low == pytest.approx(ddp_low, abs=0.05)
    assert low != full


KNOBS = {
    "recomputed blocks": {"activation_checkpointing": "blocks", "fsdp": Fsdp(("Linear",))},
    "recomputed operations": {"activation_checkpointing": "operations", "fsdp": Fsdp(("Linear",))},
    "static graph": {"ddp": Ddp(0.001, static_graph=True, broadcast_buffers=False)},
    "FSDP, hybrid": {"strategy": "fsdp", "fsdp": Fsdp(shard="hybrid")},
    "FSDP, recomputed blocks": {
        "strategy": "fsdp",
        "activation_checkpointing": "blocks",
        "fsdp": Fsdp(("Linear",)),
    },
    "FSDP, kept parameters": {"strategy": "fsdp", "fsdp": Fsdp(reshard_after_forward=False)},
    "FSDP, one exchange": {"strategy": "fsdp", "fsdp": Fsdp(exchange_every_pass=False)},
    "FSDP, operations": {"strategy": "fsdp", "activation_checkpointing": "operations"},
}


@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_of_speed_or_memory_changes_no_loss(ranks, knob):
    settings = replace(SETTINGS, accumulate=2)
    ddp = ranks(2).results(_short, Normalized(54), settings)[0].logged("train")
    outcome = ranks(2).results(_short, Normalized(54), replace(settings, **KNOBS[knob]))[0]
    assert outcome.logged("train") == pytest.approx(ddp, rel=0, abs=1e-6)
    assert outcome.weights().keys() == Normalized().model().state_dict().keys()


class Kept(Normalized):
    """Counts the elements that the backward pass finds in memory."""

    kept = 0

    def loss(self, model, batch):
        def pack(tensor):
            self.kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return super().loss(model, batch)


def _kept_and_computed(rank_info, how):
    settings = TrainSettings(
        steps=1, batch_size=4, activation_checkpointing=how, fsdp=Fsdp(blocks=("Sequential",))
    )
    task = Kept(54)
    task.model = lambda: nn.Sequential(Normalized.model(task))
    with FlopCounterMode(display=False) as counter:
        run_task(rank_info, task, settings)
    return task.kept, counter.get_total_flops()


@pytest.mark.slow
def test_what_is_computed_again_is_not_kept():
    everything, once = _kept_and_computed(ALONE, "none")
    without_operations, products_once = _kept_and_computed(ALONE, "operations")
    inputs, twice = _kept_and_computed(ALONE, "blocks")
    assert inputs <= without_operations < everything
    assert products_once == once < twice


@pytest.mark.parametrize(
    ("local_ranks", "per_node"), [([0, 1, 0, 1], 2), ([0, 0, 0], 1), ([0, 1, 2], 3), ([0, 1, 0], None)]
)
def test_the_ranks_of_a_node(local_ranks, per_node):
    if per_node is not None:
        assert ranks_per_node(local_ranks) == per_node
        return
    with pytest.raises(ClusterError, match=r"the local ranks in their order are \[0, 1, 0\]"):
        ranks_per_node(local_ranks)


class Experts(nn.Module):
    """A mixture of two experts of the same size; the choice is the rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        return self.experts[dist.get_rank()](x)


class Mixture(Normalized):
    def model(self):
        return nn.Sequential(Experts(), nn.Linear(6, 3))

    def blocks(self, model):
        return [model[0]]

    def images(self, model):
        return {"weights": model(torch.ones(1, 6)).softmax(1).reshape(1, 1, 3)}


def test_each_rank_may_use_other_parameters_of_a_block(ranks):
    settings = replace(SETTINGS, steps=6, eval_every=EvalEvery(steps=3), find_unused_parameters=True)
    ddp = ranks(2).results(run_task, Mixture(55), settings)
    fsdp = ranks(2).results(run_task, Mixture(55), replace(settings, strategy="fsdp"))
    assert fsdp[0].logged("train") == pytest.approx(ddp[0].logged("train"), rel=0, abs=1e-6)
    for name, weight in ddp[0].weights().items():
        torch.testing.assert_close(fsdp[0].weights()[name], weight, rtol=0, atol=1e-6)
    of_rank_0, of_rank_1 = (outcome.images_of_steps for outcome in fsdp)
    assert of_rank_0.keys() == {3, 6}
    assert of_rank_1 == {}, "rank 0 shows the images, and both compute them"
    for step, images in of_rank_0.items():
        assert torch.equal(images["weights"], ddp[0].images_of_steps[step]["weights"])


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
