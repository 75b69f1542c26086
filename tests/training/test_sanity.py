"""What is tried before the first step changes nothing of the run."""

import pytest
import torch
from torch.utils.data import TensorDataset

from clustertrain.training.settings import EvalEvery, SaveEvery, TrainSettings
from training.tasks import Classify, run_task, same

pytestmark = pytest.mark.slow


class Shown(Classify):
    """It draws random numbers in what is tried, and its model has buffers."""

    def eval_data(self, data):
        return TensorDataset(torch.randn(12, 6), torch.arange(12) % 3, torch.arange(12))

    def eval_step(self, model, batch):
        x, y, _ = batch
        torch.rand(3)
        return torch.nn.functional.cross_entropy(model(x), y), model(x), y

    def images(self, model):
        return {"noise": torch.rand(3, 2, 2)}

    def state_dict(self):
        return {"seen": 1}

    def load_state_dict(self, state):
        torch.rand(2)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_first_loss_and_every_state_have_the_bits_of_a_run_without_it(ranks, world_size):
    def trained(sanity, state=None):
        settings = TrainSettings(
            steps=4,
            batch_size=4,
            log_every=1,
            eval_every=EvalEvery(steps=2),
            save_every=SaveEvery(steps=2),
            sanity=sanity,
        )
        return ranks(world_size).results(run_task, Shown(), settings, state)[0]

    tried, untried = trained(True), trained(False)
    losses = [each.logged("train") for each in (tried, untried)]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    for step in (2, 4):
        assert same(tried.state(step), untried.state(step))
    assert same(trained(True, tried.saves[2]).state(4), untried.state(4)), "nor that of a resumed one"
