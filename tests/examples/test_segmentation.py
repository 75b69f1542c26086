"""The example of segmentation: the reader of Cityscapes' folders, mIoU, and training on two workers."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchmetrics import JaccardIndex

from clustertrain import load_job
from clustertrain.errors import JobError
from clustertrain.training.rehearsal import rehearse
from clustertrain.worker.train import settings_of
from support.example_modules import clustertrain, example_of, set_options

EXAMPLE = Path(__file__).parents[2] / "examples" / "segmentation"
JOB = EXAMPLE / "job.yaml"
MODULES = ("cityscapes", "make_cityscapes", "segmentation")
TRAIN, VAL, HEIGHT, WIDTH = 16, 5, 64, 128
IMAGE = "train/aachen/aachen_000000_000019"


example = example_of(EXAMPLE, *MODULES)


@pytest.fixture
def root(example, tmp_path):
    """A folder of the data set, small."""
    folder = tmp_path / "cityscapes"
    example["make_cityscapes"].write_folder(folder, {"train": TRAIN, "val": VAL}, HEIGHT, WIDTH)
    return folder


def path_of(root, kind):
    suffix = {"leftImg8bit": "leftImg8bit", "gtFine": "gtFine_labelIds"}[kind]
    return root / kind / f"{IMAGE}_{suffix}.png"


def test_an_image_belongs_to_its_labels_as_classes(example, root):
    cityscapes = example["cityscapes"]
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[3, 5], labels[4, 6], labels[5, 7], labels[6, 8] = 7, 33, 26, 33
    Image.fromarray(labels).save(path_of(root, "gtFine"))
    pixels = np.array(Image.open(path_of(root, "leftImg8bit")))
    image, classes = cityscapes.Cityscapes(root, "train")[0]
    assert (image.shape, image.dtype) == ((3, HEIGHT, WIDTH), torch.uint8)
    assert (classes.shape, classes.dtype) == ((HEIGHT, WIDTH), torch.int64)
    assert image[:, 9, 11].tolist() == pixels[9, 11].tolist()
    assert [classes[n, n + 2].item() for n in (3, 4, 5, 6)] == [0, 18, 13, 18]
    assert (classes == 255).sum() == classes.numel() - 4
    assert len(cityscapes.CLASSES) == len(cityscapes.LABEL_IDS) == 19
    assert cityscapes.CLASSES[13] == "car"


def test_both_cities_are_read_and_the_crops_of_image_and_labels_fit(example, root):
    data = example["cityscapes"].Cityscapes(root, "train", crop=(32, 48))
    assert len(data) == TRAIN
    assert {image.parent.name for image, _ in data.files} == {"aachen", "bochum"}
    make = example["make_cityscapes"]
    sky = example["cityscapes"].CLASSES.index("sky")
    for _ in range(5):  # crops and flips are random; the sky has its color in each of them
        image, classes = data[0]
        assert (image.shape, classes.shape) == ((3, 32, 48), (32, 48))
        if (classes == sky).sum() > 100:
            mean = image[:, classes == sky].float().mean(1)
            assert torch.allclose(mean, torch.tensor(make.COLORS[make.SKY]).float(), atol=8)


@pytest.mark.parametrize("value", [34, 255])
def test_a_label_out_of_range_names_value_and_path(example, root, value):
    path = path_of(root, "gtFine")
    labels = np.array(Image.open(path))
    labels[10, 20:23] = value
    Image.fromarray(labels).save(path)
    said = (
        rf"{path}: row 10, column 20 has the label {value}; the labels are 0 to 33\. .*: 3 of {labels.size}\."
    )
    with pytest.raises(ValueError, match=said):
        example["cityscapes"].Cityscapes(root, "train")[0]


def test_files_that_are_wrong_name_their_path(example, root):
    read = example["cityscapes"].Cityscapes
    labels, image = path_of(root, "gtFine"), path_of(root, "leftImg8bit")
    content = labels.read_bytes()
    Image.fromarray(np.zeros((HEIGHT, WIDTH - 1), np.uint8)).save(labels)
    with pytest.raises(
        ValueError, match=rf"{labels} has height and width \(64, 127\), its image \(64, 128\)"
    ):
        read(root, "train")[0]
    labels.write_bytes(content)
    image.write_bytes(image.read_bytes()[:2000])
    with pytest.raises(ValueError, match=rf"{image} cannot be read: "):
        read(root, "train")[0]
    with pytest.raises(ValueError, match=r"less than the crop \(65, 10\)\. Set a smaller args\.crop"):
        read(root, "train", crop=(65, 10))[1]
    labels.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{image} has no labels: {labels} is not there"):
        read(root, "train")


def test_the_matrices_of_two_ranks_add_up_to_the_miou_of_torchmetrics(example):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 19, 8, 8, generator=generator)
    outputs[:, 17:] -= 100  # of these two classes nothing is found, and one is not among the labels
    targets = torch.randint(0, 18, (4, 8, 8), generator=generator)
    targets[:, :2] = 255
    whole, *ranks = (example["segmentation"].MeanIoU(19) for _ in range(3))
    whole.update(outputs, targets)
    for rank, metric in enumerate(ranks):
        metric.update(outputs[rank::2], targets[rank::2])
    expected = JaccardIndex(task="multiclass", num_classes=19, ignore_index=255)(outputs, targets)
    assert whole.compute() == pytest.approx(expected.item())
    ranks[0].sums += ranks[1].sums
    assert torch.equal(ranks[0].sums, whole.sums)
    assert whole.sums.sum() == 4 * 6 * 8, "ignored pixels do not count"


def rehearsed(example, root, share, **settings):
    job = load_job(JOB)
    task = example["segmentation"].Segmentation(lr=0.05, crop=[48, 64], auxiliary_share=share)
    changed = replace(settings_of(job), **settings)
    return rehearse(task, changed, torch.device("cpu"), {"cityscapes": root}, world_size=2)


def test_an_unused_head_is_named_without_the_setting(example, root):
    assert rehearsed(example, root, 0.0) == ("loss", "miou")
    with pytest.raises(JobError) as caught:
        rehearsed(example, root, 0.0, find_unused_parameters=False)
    assert "parameters of the model: auxiliary.0.0.weight, auxiliary.0.1.weight, " in str(caught.value)
    assert "Set train.find_unused_parameters: true" in str(caught.value)
    rehearsed(example, root, 1.0, find_unused_parameters=False)


def test_crops_without_a_class_have_the_loss_0(example):
    nothing = torch.full((2, 4, 4), 255)
    assert example["segmentation"].pixel_loss(torch.randn(2, 19, 4, 4), nothing) == 0


@pytest.mark.nightly  # in CI: the tests above; test_examples.py trains the digits on two workers
@pytest.mark.run
def test_two_workers_learn_the_generated_scenes(tmp_path):
    """The commands of the README, smaller."""
    folder = tmp_path / "cityscapes"
    sizes = ["--train", "32", "--val", "5", "--height", str(HEIGHT), "--width", str(WIDTH)]
    subprocess.run([sys.executable, str(EXAMPLE / "make_cityscapes.py"), str(folder), *sizes], check=True)
    sets = {
        "data.cityscapes.uri": folder,
        "args.crop": "[48, 64]",
        "train.epochs": 6,
        "train.eval_every": "{epochs: 3}",
        "resources.cpus_per_worker": 0.5,
        "storage": tmp_path / "runs",
    }
    done = clustertrain("run", str(JOB), *set_options(sets))
    miou = next(line for line in done.stdout.splitlines() if line.startswith("miou"))
    assert float(miou.split()[1]) >= 0.3, "of 9 classes; 0.05 is chance"
