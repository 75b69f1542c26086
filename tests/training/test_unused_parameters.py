"""Parameters that some steps leave unused: named before or in place of DDP's own error, or found by DDP."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from clustertrain.errors import JobError
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import Ddp, TrainSettings
from training.ranks import ALONE
from training.tasks import Plain, run_task

SETTINGS = TrainSettings(steps=6, batch_size=4)
SETTLING = 2  # passes before the first step


class Net(nn.Module):
    """With a frozen layer and one that is registered twice, so that numbers and names are not in step."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.body = nn.Linear(4, 4)
        self.again = self.body
        self.head = nn.Linear(4, 1)
        self.auxiliary = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, x, with_auxiliary):
        x = self.again(self.body(self.frozen(x)))
        return self.head(x), self.auxiliary(x) if with_auxiliary else None


class TwoHeads(Plain):
    """Leaves the auxiliary head out of the passes in `without`, counted from 0."""

    def __init__(self, *without):
        super().__init__()
        self.without, self.passes = without, 0

    def model(self):
        return Net()

    def loss(self, model, batch):
        x, y = batch
        output, auxiliary = model(x, self.passes not in self.without)
        self.passes += torch.is_grad_enabled()
        loss = functional.mse_loss(output, y)
        return loss if auxiliary is None else loss + 0.4 * functional.mse_loss(auxiliary, y)


NAMED = (
    r"^The loss of TwoHeads does not depend on parameters of the model: auxiliary\.0\.weight, "
    r"auxiliary\.0\.bias, auxiliary\.2\.weight and 1 more\.\n.*train\.find_unused_parameters: true"
)


@pytest.mark.parametrize("unused", [0, 1, SETTLING, SETTLING + 3, SETTLING + 5])
def test_the_step_that_leaves_parameters_unused_names_them(ranks, unused):
    """Also the last one, after which DDP itself would report nothing."""
    for answer in ranks(2).call(run_task, TwoHeads(unused), SETTINGS):
        assert isinstance(answer, JobError)
        with pytest.raises(JobError, match=NAMED):
            raise answer


def test_parameters_that_only_the_last_pass_of_a_step_leaves_unused_are_named(ranks):
    """The passes before have left a gradient, so only DDP finds it, in its next pass."""
    settings = replace(SETTINGS, accumulate=2)
    for answer in ranks(2).call(run_task, TwoHeads(SETTLING + 1), settings):
        with pytest.raises(JobError, match=NAMED) as caught:
            raise answer
        assert "finished reduction" in str(caught.value.__cause__ or caught.value.__notes__)


def test_with_the_setting_they_train_and_in_one_process_they_need_none(ranks):
    settings = replace(SETTINGS, find_unused_parameters=True)
    outcome, other = ranks(2).results(run_task, TwoHeads(SETTLING, SETTLING + 3), settings)
    assert outcome.result.finished
    for name, weights in outcome.weights().items():
        assert torch.equal(weights, other.weights()[name]), name
    assert run_task(ALONE, TwoHeads(0, 3), SETTINGS).result.finished


def test_a_static_graph_may_have_parameters_that_are_never_used(ranks):
    static = replace(SETTINGS, accumulate=2, ddp=Ddp(static_graph=True))
    never = TwoHeads(*range(100))
    assert rehearse(never, static, torch.device("cpu"), {}, world_size=2) == ()
    outcome = ranks(2).results(run_task, never, static)[0]
    expected = ranks(2).results(
        run_task, never, replace(SETTINGS, accumulate=2, find_unused_parameters=True)
    )[0]
    for name, weights in expected.weights().items():
        assert torch.equal(weights, outcome.weights()[name]), name
