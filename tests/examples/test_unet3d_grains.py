"""The grains: their volumes, the U-Net, and a run of two workers with its images in TensorBoard."""

from pathlib import Path

import pytest
import torch
from torch import nn

from clustertrain import load_job
from clustertrain.training.rehearsal import rehearse
from clustertrain.worker.train import settings_of
from example_modules import clustertrain, example_of, set_options

EXAMPLE = Path(__file__).parents[2] / "examples" / "unet3d_grains"


example = example_of(EXAMPLE, "grains", "unet3d_grains")


def task_of(example, file, **args):
    job = load_job(EXAMPLE / file)
    return example["unet3d_grains"].Grains(**{**job.args, **args}), job


def test_a_voxel_is_a_boundary_if_a_neighbour_after_it_is_of_another_grain(example):
    """Two seeds: the boundary is one plane of voxels, at the plane in the middle between them."""
    generator = torch.Generator().manual_seed(3)
    seeds = torch.rand(2, 3, generator=torch.Generator().manual_seed(3)) * 12
    image, boundary = example["grains"].volume(12, 2, generator)
    voxels = torch.cartesian_prod(*[torch.arange(12.0)] * 3)
    first = ((voxels - seeds[0]).norm(dim=1) <= (voxels - seeds[1]).norm(dim=1)).view(12, 12, 12)
    for z, y, x in [(0, 0, 0), (5, 5, 5), (11, 11, 11), *boundary[0].nonzero()[::7].tolist()]:
        after = [(z + 1, y, x), (z, y + 1, x), (z, y, x + 1)]
        differs = any(first[z, y, x] != first[voxel] for voxel in after if max(voxel) < 12)
        assert boundary[0, z, y, x] == differs
    assert image.shape == boundary.shape == (1, 12, 12, 12)
    assert 0 < boundary.mean() < 0.5
    darker = image[boundary == 1].mean() < image[boundary == 0].mean() - 0.3
    assert darker


def test_the_volumes_follow_from_the_seed(example):
    volumes = example["grains"].volumes
    one, same, other = volumes(2, 8, seed=4), volumes(2, 8, seed=4), volumes(2, 8, seed=5)
    assert torch.equal(one.tensors[0], same.tensors[0]) and torch.equal(one.tensors[1], same.tensors[1])
    assert not torch.equal(one.tensors[0], other.tensors[0])
    assert not torch.equal(one[0][0], one[1][0])


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


def test_the_unet_keeps_the_shape_and_uses_every_parameter(example):
    model = example["unet3d_grains"].UNet3d([4, 8, 16])
    scores = model(torch.rand(2, 1, 8, 12, 16))
    assert scores.shape == (2, 1, 8, 12, 16)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


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


@pytest.mark.nightly  # in CI: the tests above; test_cifar100.py trains on two workers
@pytest.mark.run
def test_two_workers_find_the_boundaries(example, tmp_path):
    options = set_options({"storage": tmp_path, "resources.cpus_per_worker": 0.5})
    done = clustertrain("run", str(EXAMPLE / "cpu.yaml"), *options)
    summary = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.count(" ") > 1)
    dice, iou = float(summary["dice"]), float(summary["iou"])
    assert dice >= 0.75, "without training it is below 0.4"
    assert iou == pytest.approx(dice / (2 - dice), abs=2e-4), "of the same voxels"
