"""The task of docs/guides/data.md, with images made here."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clustertrain.job.file import load_job
from clustertrain.training.data.loading import Fetch
from clustertrain.training.data.sampling import MicroBatch
from clustertrain.training.rehearsal import rehearse
from clustertrain.worker.code.user_code import make_task
from clustertrain.worker.train import settings_of

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "data.md"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The job of the page in a folder with its code, 24 images of a cat and 8 of a dog."""
    page = PAGE.read_text()
    for name, language in (("photos.py", "python"), ("job.yaml", "yaml")):
        (tmp_path / name).write_text(page.partition(f"```{language}\n")[2].partition("```")[0])
    generator = np.random.default_rng(0)
    for label, count in (("cat", 24), ("dog", 8)):
        for part in ("train", "val"):
            folder = tmp_path / "photos" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(256, size=(40, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:04}.png")
    monkeypatch.syspath_prepend(tmp_path)
    return load_job(tmp_path / "job.yaml", environ={})


def test_the_task_of_the_page_trains_on_folders_of_images(job, tmp_path):
    task = make_task(importlib.import_module("photos").Photos, job)
    data = {"photos": Path(job.data["photos"].uri)}
    rehearse(task, settings_of(job), torch.device("cpu"), data)
    assert torch.allclose(task.class_weights, torch.tensor([32 / 48, 32 / 16]))

    fetch = Fetch(task.train_data(data), task.collate)
    first, again, other = (fetch[MicroBatch([0, 31], seed, 1.0, None)] for seed in (1, 1, 2))
    assert first[0].shape == (2, 3, 32, 32) and first[1].tolist() == [0, 1]
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])  # another epoch has other seeds
    fetch = Fetch(task.eval_data(data), task.collate)
    plain, same = (fetch[MicroBatch([0, 31], seed, 1.0, None)] for seed in (1, 2))
    assert torch.equal(plain[0], same[0])
