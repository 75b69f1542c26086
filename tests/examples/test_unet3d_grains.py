"""The grains: their volumes, the U-Net, and a run of two workers with its images in TensorBoard."""

from pathlib import Path

import pytest
import torch
from torch import nn

from clustertrain import load_job
from clustertrain.training.rehearsal import rehearse
from clustertrain.worker.train import settings_of
from support.example_modules import clustertrain, example_of, set_options

EXAMPLE = Path(__file__).parents[2] / "examples" / "unet3d_grains"


example = example_of(EXAMPLE, "grains", "unet3d_grains")


def task_of(example, file, **args):
    job = load_job(EXAMPLE / file)
    return example["unet3d_grains"].Grains(**{**job.args, **args}), job


def test_the_job_synchronizes_batchnorm_and_lowers_the_rate_twice(example):
    task, job = task_of(example, "job.yaml", volumes=2, eval_volumes=2)
    model = task.model()
    assert sum(isinstance(module, nn.BatchNorm3d) for module in model.modules()) == 10
    settings = settings_of(job)
    assert (settings.precision, job.resources.gpus_per_worker) == ("fp16", 1)
    assert settings.sync_batchnorm
    optimizer = task.optimizer(model)
    scheduler = task.scheduler(optimizer, 100)
    lrs = []
    for _ in range(100):
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert (lrs[59], lrs[60], lrs[84], lrs[85]) == pytest.approx((2e-3, 2e-4, 2e-4, 2e-5))


def test_a_size_that_does_not_halve_is_refused_with_the_arithmetic(example):
    with pytest.raises(ValueError, match=r"30 / 4 = 7\.5\. Use a multiple of 4"):
        task_of(example, "job.yaml", size=30)


def test_loss_and_metrics_of_known_volumes(example):
    module = example["unet3d_grains"]
    scores = torch.tensor([9.0, 9.0, -9.0, -9.0]).view(1, 1, 1, 2, 2)
    targets = torch.tensor([1.0, 0.0, 1.0, 0.0]).view(1, 1, 1, 2, 2)
    dice, iou = module.Dice(), module.IoU()
    for metric in (dice, iou):
        metric.reset()
        metric.update(scores, targets)
    assert (dice.compute(), iou.compute()) == (2 * 1 / 4, 1 / 3)
    assert module.bce_and_dice(scores, targets).item() == pytest.approx(4.5 + 1 - 3 / 5, abs=1e-3)
    assert module.bce_and_dice(1e4 * (2 * targets - 1), targets).item() == pytest.approx(0, abs=1e-6)
    half = torch.full((1, 1, 64, 64, 64), 10.0, dtype=torch.float16)  # their sum is 262,144
    assert module.bce_and_dice(half, torch.ones(1, 1, 64, 64, 64)).isfinite()


def test_the_images_are_slices_of_the_first_volume(example):
    task, job = task_of(example, "cpu.yaml", volumes=4, eval_volumes=2)
    rehearse(task, settings_of(job), torch.device("cpu"), {}, world_size=2)
    with torch.no_grad():
        images = task.images(task.model())
    assert list(images) == ["input", "truth", "prediction"]
    assert {tuple(image.shape) for image in images.values()} == {(1, 16, 16)}
    assert torch.equal(images["truth"], task.evaluated[0][1][:, 8])


@pytest.mark.nightly  # in CI: the tests above; test_examples.py trains the digits on two workers
@pytest.mark.run
def test_two_workers_find_the_boundaries(example, tmp_path):
    options = set_options({"storage": tmp_path, "resources.cpus_per_worker": 0.5})
    done = clustertrain("run", str(EXAMPLE / "cpu.yaml"), *options)
    summary = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.count(" ") > 1)
    dice, iou = float(summary["dice"]), float(summary["iou"])
    assert dice >= 0.75, "without training it is below 0.4"
    assert iou == pytest.approx(dice / (2 - dice), abs=2e-4), "of the same voxels"
