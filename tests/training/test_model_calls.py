"""A loss that does not call the model itself is refused before the first step, in a rehearsal and a run."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.errors import JobError
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import TrainSettings
from training.tasks import run_task

CPU = torch.device("cpu")
SETTINGS = TrainSettings(steps=6, global_batch_size=16)
REMEDY = r"\nPut what the loss needs of the model into its forward\(\), and call model\(…\)"


class Net(nn.Module):
    weight = 0.01

    def __init__(self, alone=False):
        super().__init__()
        self.enc, self.dec = nn.Linear(8, 16), nn.Linear(16, 8)
        if alone:  # gloo could not send it
            self.register_buffer("quantized", torch.zeros(4).to(torch.float8_e4m3fn))

    def encode(self, x):
        return torch.tanh(self.enc(x))

    def forward(self, x):
        z = self.encode(x)
        return self.dec(z), z


class Auto(Task):
    """Right: what the loss needs is computed in forward; also what it reads of the wrapped model."""

    lr = 0.01

    def model(self):
        self.net = Net()
        return self.net

    def train_data(self, data):
        return TensorDataset(torch.randn(96, 8, generator=torch.Generator().manual_seed(1)))

    def of(self, x, decoded, z, weight):
        return functional.mse_loss(decoded, x) + weight * z.pow(2).mean()

    def loss(self, model, batch):
        (x,) = batch
        net = model.module if hasattr(model, "module") else model
        return self.of(x, *model(x), net.weight)


class Unwrapped(Auto):
    def loss(self, model, batch):
        (x,) = batch
        net = model.module if hasattr(model, "module") else model
        return self.of(x, *net(x), net.weight)


class Quantized(Auto):
    def model(self):
        return Net(alone=True)


class Kept(Auto):
    """Calls the model that the task has kept."""

    def loss(self, model, batch):
        return self.of(batch[0], *self.net(batch[0]), 0.01)


class Direct(Auto):
    def loss(self, model, batch):
        z = model.encode(batch[0])
        return self.of(batch[0], model.dec(z), z, 0.01)


class Misspelt(Auto):
    """A mistake of another object keeps its error."""

    def loss(self, model, batch):
        return model(batch[0])[0].maen()


REFUSED = {
    Unwrapped: r"Unwrapped.loss\(\) never calls model\(…\): with several workers",
    Kept: r"Kept.loss\(\) never calls model\(…\)",
    Direct: r"Direct.loss\(\) reads model.encode, .* in DistributedDataParallel, which lacks it",
}


@pytest.mark.parametrize("task", REFUSED)
def test_a_loss_that_does_not_call_the_model_is_refused_by_the_rehearsal_and_by_each_rank(
    ranks, task, group_of_one
):
    with pytest.raises(JobError, match=REFUSED[task] + r".*" + REMEDY + r".*\n.*test_model_calls.py:\d+"):
        rehearse(task(), SETTINGS, CPU, {}, world_size=2)
    for answer in ranks(2).call(run_task, task(), SETTINGS):
        assert isinstance(answer, JobError)
        with pytest.raises(JobError, match=REFUSED[task] + r".*" + REMEDY):
            raise answer


def test_fsdp_needs_the_call_and_has_no_wrapper(ranks):
    settings = replace(SETTINGS, strategy="fsdp")
    with pytest.raises(JobError, match=r"Direct.loss\(\) never calls model\(…\)"):
        rehearse(Direct(), settings, CPU, {}, world_size=2)
    for answer in ranks(2).call(run_task, Direct(), settings):
        assert isinstance(answer, JobError), answer
    rehearse(Kept(), settings, CPU, {}, world_size=2)
    assert ranks(2).results(run_task, Kept(), settings)[0].result.finished


def test_a_loss_that_does_not_call_the_model_trains_on_one_worker(ranks, group_of_one):
    for task in (Auto, *REFUSED):
        rehearse(task(), SETTINGS, CPU, {})
    for task in (Auto, Quantized):
        rehearse(task(), SETTINGS, CPU, {}, world_size=2)
    (alone,) = ranks(1).results(run_task, Unwrapped(), SETTINGS)
    first, second = ranks(2).results(run_task, Auto(), SETTINGS)
    for name, weights in alone.weights().items():
        assert torch.equal(first.weights()[name], second.weights()[name])
        assert torch.allclose(first.weights()[name], weights, atol=1e-6), name


def test_an_attribute_error_of_another_object_is_not_changed(ranks, group_of_one):
    said = "raised AttributeError: 'Tensor' object has no attribute 'maen'"
    with pytest.raises(JobError, match=said):
        rehearse(Misspelt(), SETTINGS, CPU, {}, world_size=2)
    assert all(said in str(answer) for answer in ranks(2).call(run_task, Misspelt(), SETTINGS))
