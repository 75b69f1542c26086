"""The images of a task: who makes them, and what is refused before the first step."""

import pytest
import torch
from torch.utils.data import TensorDataset

from clustertrain.errors import JobError
from clustertrain.training.images import images_of
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import EvalEvery, SaveEvery, TrainSettings
from training.ranks import ALONE
from training.tasks import Plain, plain, run_task, same

SETTINGS = TrainSettings(steps=4, batch_size=4, eval_every=EvalEvery(steps=2), save_every=SaveEvery(steps=4))


class Showing(Plain):
    """Images of the weights; it draws random numbers, and is evaluated on six samples."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def eval_data(self, data):
        return TensorDataset(torch.ones(6, 4), torch.zeros(6, 1))

    def images(self, model):
        self.calls.append((model.training, torch.is_grad_enabled()))
        return {"weights": torch.sigmoid(model.weight.view(1, 2, 2)), "noise": torch.rand(3, 2, 2)}


class Silent(Showing):
    images = Plain.images


def shown(rank_info):
    task = Showing()
    return run_task(rank_info, task, SETTINGS), task.calls


def test_rank_0_makes_the_images_before_the_first_step_and_after_each_evaluation(ranks):
    (first, calls), (second, calls_of_1) = ranks(2).results(shown)
    assert list(first.images_of_steps) == [2, 4] and calls == [(False, False)] * 3
    images = first.images_of_steps[4]
    assert {name: (image.dtype, tuple(image.shape)) for name, image in images.items()} == {
        "weights": (torch.uint8, (1, 2, 2)),
        "noise": (torch.uint8, (3, 2, 2)),
    }
    expected = torch.sigmoid(first.weights()["weight"]).view(1, 2, 2) * 255
    assert torch.equal(images["weights"], expected.round().to(torch.uint8))
    assert (second.images_of_steps, calls_of_1) == ({}, [])


def test_images_change_no_random_number_and_no_weight(ranks):
    with_images = ranks(1).results(shown)[0][0]
    without = run_task(ALONE, Silent(), SETTINGS)
    assert same(with_images.state(4), without.state(4)) and without.images_of_steps == {}


@pytest.mark.parametrize(
    ("images", "what"),
    [
        ([torch.zeros(1, 2, 2)], "returned list"),
        ({"a": 1}, "'a' of Showing.images() is int"),
        ({"a": torch.zeros(2, 2)}, "'a' of Showing.images() has the shape (2, 2)"),
        ({"a": torch.zeros(1, 2, 2, dtype=torch.int64)}, "has the type torch.int64"),
    ],
)
def test_what_is_no_image_is_refused_before_the_first_step(images, what):
    task = Showing()
    task.images = lambda model: images
    with pytest.raises(JobError) as raised:
        rehearse(task, SETTINGS, torch.device("cpu"), {})
    assert what in str(raised.value) and "Showing.images() is at" in str(raised.value)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (torch.tensor([[[0.0, 1.0, 0.5, 2.0, -1.0, float("nan")]]]), [0, 255, 128, 255, 0, 0]),
        (torch.tensor([[[0.0, 1.0]]], dtype=torch.bfloat16), [0, 255]),
        (torch.tensor([[[True, False]]]), [255, 0]),
        (torch.tensor([[[7, 255]]], dtype=torch.uint8), [7, 255]),
    ],
)
def test_values_become_bytes(image, expected):
    task = plain(images=lambda model: {"a": image})
    assert images_of(task, torch.nn.Identity())["a"].flatten().tolist() == expected
