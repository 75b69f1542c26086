"""MONAI's U-Net: crops and whole volumes, damaged files, a missing package, and a run of two workers."""

import tarfile
from pathlib import Path

import pytest
import torch

from clustertrain import load_job
from clustertrain.errors import JobError
from clustertrain.training.data.loading import Fetch
from clustertrain.training.data.sampling import MicroBatch, Position
from clustertrain.training.rehearsal import rehearse
from clustertrain.worker.train import settings_of
from support.example_modules import clustertrain, example_of, set_options

EXAMPLE = Path(__file__).parents[2] / "examples" / "unet3d_monai"
COUNT, SIZE, EVALUATED = 11, 48, 3  # two workers evaluate 2 and 1 of them


example = example_of(EXAMPLE, "make_archive", "unet3d_monai")


@pytest.fixture(scope="module")
def archive(example, tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "volumes.tar"
    example["make_archive"].write_archive(path, COUNT, SIZE)
    return path


@pytest.fixture
def data(archive, tmp_path):
    """A folder of its own for each test, which may damage a file."""
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    return {"volumes": tmp_path}


def task_of(example, **args):
    job = load_job(EXAMPLE / "job.yaml", [f"args.eval_volumes={EVALUATED}"])
    return example["unet3d_monai"].Spheres(**{**job.args, **args}), settings_of(job)


def batch_of(task, dataset, ids, seed=0):
    key = MicroBatch(ids=ids, share=1.0, seed=seed, after=Position())
    return Fetch(dataset, task.collate)[key]


def test_a_batch_has_the_crops_of_all_volumes(example, data):
    task, settings = task_of(example)
    assert settings.batch_size == 2
    images, labels = batch_of(task, task.train_data(data), [4, 1])
    assert images.shape == labels.shape == (2 * 4, 1, 32, 32, 32)
    assert type(images) is torch.Tensor, "not MONAI's own, which carries the data of the file"
    assert 0 <= images.min() < images.max() <= 1
    whole, masks = batch_of(task, task.eval_data(data), [0, 2])
    assert whole.shape == masks.shape == (2, 1, SIZE, SIZE, SIZE)


def test_training_and_evaluation_share_no_volume(example, data):
    task, _ = task_of(example)
    train, evaluated = task.train_data(data), task.eval_data(data)
    assert (len(train), len(evaluated)) == (COUNT - EVALUATED, EVALUATED)
    assert not {p["image"] for p in train.pairs} & {p["image"] for p in evaluated.pairs}


def test_an_empty_volume_does_not_count_in_the_mean(example):
    mean = example["unet3d_monai"].mean_dice(torch.tensor([[0.5], [float("nan")], [1.0]]), None)
    assert mean.item() == 0.75


def test_a_volume_that_was_cut_is_an_error_with_its_path_and_the_setting(example, data):
    paths = [data["volumes"] / f"{name}.nii.gz" for name in ("image_000", "label_003")]
    for path in paths:
        path.write_bytes(path.read_bytes()[:-500])
    task, settings = task_of(example)
    dataset = task.train_data(data)
    for i, path in ((0, paths[0]), (3, paths[1])):
        with pytest.raises(ValueError, match=rf"{path} does not open as NIfTI: .*skip_unreadable=true"):
            dataset[i]
    for i in range(COUNT):  # whichever volume comes first
        (data["volumes"] / f"image_{i:03}.nii.gz").write_bytes(b"no volume")
    with pytest.raises(JobError, match="does not open as NIfTI"):
        rehearse(task, settings, torch.device("cpu"), data, world_size=2)


def test_volumes_that_do_not_open_are_left_out_by_a_setting(example, data, capsys):
    cut = data["volumes"] / "label_003.nii.gz"
    cut.write_bytes(cut.read_bytes()[:-500])
    (data["volumes"] / "label_005.nii.gz").unlink()
    task, settings = task_of(example, skip_unreadable=True)
    kept = [pair["image"].name for pair in task.find_pairs(data)]
    assert kept == [f"image_{i:03}.nii.gz" for i in range(COUNT) if i not in (3, 5)]
    printed = capsys.readouterr().err
    assert f"left out: {cut} does not open as NIfTI" in printed and "label_005" in printed
    names = rehearse(task, settings, torch.device("cpu"), data, world_size=2)
    assert names == ("loss", "mean_dice")


def test_too_few_volumes_are_refused_with_the_numbers(example, data):
    task, _ = task_of(example, eval_volumes=COUNT)
    with pytest.raises(ValueError, match=rf"has {COUNT} pairs .* args\.eval_volumes: {COUNT}"):
        task.train_data(data)
    for crop in (16, 40):
        with pytest.raises(ValueError, match=rf"crop is {crop}; .* a multiple of 16, at least 32"):
            task_of(example, crop=crop)


@pytest.mark.nightly  # in CI: the tests above; test_examples.py trains the digits on two workers
@pytest.mark.run
def test_two_workers_find_the_spheres(example, archive, data, tmp_path):
    sets = {
        "data.volumes.uri": archive,
        "args.eval_volumes": EVALUATED,
        "train.epochs": 4,
        "resources.cpus_per_worker": 0.5,
        "storage": tmp_path / "runs",
    }
    done = clustertrain("run", str(EXAMPLE / "job.yaml"), *set_options(sets))
    summary = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.count(" ") > 1)
    assert float(summary["mean_dice"]) > 0.7
