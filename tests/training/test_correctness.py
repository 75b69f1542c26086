"""docs/concepts/several-ranks.md and the script of its blocks, examples/correctness/correctness.py."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, TensorDataset

from clustertrain import Task
from training.tasks import evaluation_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "several-ranks.md").read_text()
BLOCK = re.compile(r"^<!-- output: (\w+) -->\n```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def demonstration():
    """The script as a module; each rank loads it by its path."""
    path = ROOT / "examples" / "correctness" / "correctness.py"
    spec = importlib.util.spec_from_file_location("correctness", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _report(rank_info):
    return demonstration().report()


def test_the_blocks_of_the_page_are_the_output_of_the_script(ranks):
    of_ranks = ranks(2).results(_report)
    assert of_ranks[0] == dict(BLOCK.findall(PAGE)), "put what the script prints between the marks"


def test_every_number_in_the_text_is_in_the_output_of_its_section():
    sections = [each for each in re.split(r"^## ", PAGE, flags=re.MULTILINE) if BLOCK.search(each)]
    assert len(sections) == len(demonstration().SECTIONS)
    for section in sections:
        shown = {number for _, text in BLOCK.findall(section) for number in NUMBER.findall(text)}
        text = re.sub(r"^```.*?^```$|\]\(.*?\)", "", section, flags=re.MULTILINE | re.DOTALL)
        assert set(NUMBER.findall(text)) <= shown, section.partition("\n")[0]


def test_only_set_epoch_changes_the_batches_and_clustertrain_uses_no_sample_twice():
    module = demonstration()
    both = range(module.RANKS)
    for rank in both:
        first, second = (module.batches_of_sampler(rank, epoch) for epoch in (0, 1))
        assert [len(batch) for batch in first] == [len(batch) for batch in second] == [5, 5, 1]
        assert first == module.batches_of_sampler(rank, None) != second
    for epoch in (0, 1):
        padded = Counter(
            i for rank in both for batch in module.batches_of_sampler(rank, epoch) for i in batch
        )
        assert sorted(padded.values()) == [1] * 20 + [2]
        own = Counter(
            i for rank in both for batch in module.batches_of_clustertrain(rank, epoch) for i in batch
        )
        assert sorted(own.values()) == [1] * 20
    assert module.batches_of_clustertrain(0, 0) != module.batches_of_clustertrain(0, 1)


def test_accelerate_counts_24_of_1000_samples_twice_on_8_ranks():
    """What the page writes about the default of its loaders."""
    sharding = pytest.importorskip("accelerate.data_loader")
    module = demonstration()
    batches = BatchSampler(range(1000), 64, drop_last=False)
    shards = [sharding.BatchSamplerShard(batches, num_processes=8, process_index=rank) for rank in range(8)]
    counted = [i for shard in shards for batch in shard for i in batch]
    assert Counter(counted) == Counter(module.padded_to_steps(1000, 8, 64))
    assert sorted(i for i, count in Counter(counted).items() if count == 2) == list(range(24))


def f1(outputs, targets):
    right = int((outputs & targets).sum())
    return 2 * right / int(outputs.sum() + targets.sum())


def accuracy(outputs, targets):
    return (outputs == targets).double().mean().item()


class RareClass(Task):
    """The predictions of the page: the data are (found, rare) of each sample."""

    def model(self):
        return nn.Identity()

    def train_data(self, data):
        return self.eval_data(data)

    def eval_data(self, data):
        module = demonstration()
        return TensorDataset(
            torch.tensor([i in module.FOUND for i in range(1000)]),
            torch.tensor([i in module.RARE for i in range(1000)]),
        )

    def eval_step(self, model, batch):
        found, rare = batch
        return (found != rare).double().mean(), found, rare

    def metrics(self):
        return {"f1": f1, "accuracy": accuracy}


def _evaluate(rank_info):
    task = RareClass()
    return evaluation_of(rank_info, task, task.model(), task.eval_data({}), batch_size=64).run(step=0)


@pytest.mark.parametrize("world_size", [1, 3])  # 1000 samples are not a multiple of 3
def test_an_evaluation_has_the_rare_class_as_often_as_the_data(ranks, world_size):
    module = demonstration()
    _, _, exact_f1, exact_accuracy = module.rates(range(1000))
    _, _, padded_f1, padded_accuracy = module.rates(module.padded_to_steps(1000, 8, 64))
    assert padded_f1 > exact_f1 + 0.1 and padded_accuracy < exact_accuracy
    for values in ranks(world_size).results(_evaluate):
        assert values["f1"] == exact_f1 == 0.5
        assert values["accuracy"] == pytest.approx(exact_accuracy, abs=1e-12)


def test_a_moved_parameter_is_another_leaf_of_the_autograd_graph():
    """DDP's hook is on the node that accumulates the gradient; the parameter itself stays the same."""

    def node():
        return model.weight.view_as(model.weight).grad_fn.next_functions[0][0]

    model = nn.Linear(2, 1)
    parameter, before = model.weight, node()
    assert node() is before
    model.to(torch.float64)
    assert model.weight is parameter and node() is not before
