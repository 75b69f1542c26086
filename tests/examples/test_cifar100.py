"""CIFAR-100: the reader of its binary format, LeNet on two workers, and the comparison of strategies."""

import hashlib
import os
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from clustertrain import load_job
from clustertrain.training.rehearsal import rehearse
from clustertrain.worker.train import settings_of
from support.commands import ran
from support.example_modules import clustertrain, example_of, set_options
from support.web_server import serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "cifar100"
JOB = EXAMPLE / "job.yaml"
TRAIN, TEST = 1000, 203  # images; two workers evaluate 102 and 101 of them
URL_PATH = "/~kriz/cifar-100-binary.tar.gz"


example = example_of(EXAMPLE, "cifar100", "make_archive", "strategies")


@pytest.fixture(scope="module")
def archive(example, tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "cifar-100-binary.tar.gz"
    example["make_archive"].write_archive(path, TRAIN, TEST)
    return path


@pytest.fixture(scope="module")
def data(archive):
    with tarfile.open(archive) as file:
        file.extractall(archive.parent, filter="data")
    return {"cifar100": archive.parent}


@pytest.fixture
def train_bin(data, tmp_path):
    """A copy of train.bin as a writable array of records, and its path."""
    path = tmp_path / "cifar-100-binary" / "train.bin"
    path.parent.mkdir()
    records = np.fromfile(data["cifar100"] / "cifar-100-binary" / "train.bin", np.uint8).reshape(TRAIN, 3074)
    return records, path


def test_the_reader_finds_planes_rows_and_columns(example, train_bin):
    """Byte 2 + 1024 × plane + 32 × row + column of a record is that pixel; byte 1 is the class."""
    records, path = train_bin
    records[7, 1], records[7, 2 + 1024 * 2 + 32 * 5 + 9] = 99, 123
    records.tofile(path)
    images, classes = example["cifar100"].read(path)
    assert (images.shape, images.dtype) == ((TRAIN, 3, 32, 32), torch.uint8)
    assert (classes.shape, classes.dtype) == ((TRAIN,), torch.int64)
    assert (classes[7], images[7, 2, 5, 9]) == (99, 123)


@pytest.mark.parametrize("size", [0, 3073, 3074 * TRAIN - 1])
def test_a_file_that_was_cut_names_path_and_sizes(example, train_bin, size):
    records, path = train_bin
    path.write_bytes(records.tobytes()[:size])
    with pytest.raises(ValueError, match=rf"{path} has {size} bytes: {size // 3074} × 3074 \+ {size % 3074}"):
        example["cifar100"].read(path)


def test_another_version_of_the_archive_names_the_file_that_is_missing(example, tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/cifar-100-binary/test\.bin is not there"):
        example["cifar100"].Cifar100(lr=0.001).eval_data({"cifar100": tmp_path})


def test_a_wrong_class_ends_the_check_with_value_and_path_and_no_traceback(train_bin):
    records, path = train_bin
    records[3, 1] = 255
    records.tofile(path)
    options = [f"data.cifar100.uri={path.parents[1]}", "data.cifar100.sha256=", "data.cifar100.extract=false"]
    sets = [text for each in options for text in ("--set", each)]
    done = clustertrain("check", str(JOB), *sets, code=2)
    assert f"ValueError: {path}: record 3 has the fine class 255; the classes are 0 to 99" in done.stderr
    assert "Traceback" not in done.stderr


# --------------------------------------------------------------------------------------- strategies.py


def sets_by_row(example, sets, workers, gpus):
    rows, note = example["strategies"].strategies(load_job(JOB, sets), workers, gpus)
    jobs = [load_job(JOB, [*sets, *row.sets]) for row in rows]
    shown = [(row.name, row.devices) for row in rows]
    return shown, [(job.resources.workers, job.resources.gpus_per_worker, job.train) for job in jobs], note


def test_rows_on_gpus_have_one_worker_per_gpu_and_one_for_data_parallel(example):
    rows, jobs, note = sets_by_row(example, [], [1, 2, 4], gpus=4)
    assert rows == [("one process", 1), ("DataParallel", 4), ("DDP", 2), ("DDP", 4)]
    assert [job[:2] for job in jobs] == [(1, 1), (1, 4), (2, 1), (4, 1)]
    assert {train.global_batch_size for *_, train in jobs} == {200}
    assert note == ""
    per_worker = ["train.global_batch_size=", "train.batch_size=64"]
    _, jobs, _ = sets_by_row(example, per_worker, [1, 2, 4], gpus=4)
    assert [train.batch_size for *_, train in jobs] == [64, 256, 64, 64]


@pytest.mark.parametrize("gpus", [0, 1])
def test_without_two_gpus_data_parallel_is_left_out_with_a_reason(example, gpus):
    rows, jobs, note = sets_by_row(example, [], [1, 2], gpus)
    assert rows == [("one process", 1), ("DDP", 2)]
    assert [job[:2] for job in jobs] == [(1, gpus), (2, gpus)]
    assert "splits each batch among the GPUs of one process" in note
    assert f"torch can use {gpus} here" in note


def test_a_number_of_workers_that_does_not_divide_the_batch_starts_no_run():
    done = ran([sys.executable, EXAMPLE / "strategies.py", "--workers", "1", "3"], code=2)
    assert done.stdout == ""
    assert "train.global_batch_size: 200 is not a multiple of workers" in done.stderr
    assert "Traceback" not in done.stderr


def test_data_parallel_trains_in_the_loop_of_a_task(example, data):
    """Without a GPU it calls its module directly."""
    task = example["strategies"].DataParallelCifar100(lr=0.001)
    assert isinstance(task.model(), torch.nn.DataParallel)
    assert rehearse(task, settings_of(load_job(JOB)), torch.device("cpu"), data) == (
        "loss",
        "accuracy",
    )


# tests/test_examples.py trains on two workers from one copy of the data, and the tests below read the table.
@pytest.mark.nightly
@pytest.mark.run
def test_two_workers_learn_from_one_download_and_their_speed_is_shown(archive, tmp_path):
    """The only whole run here: without a row of one worker there is no speed-up."""
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    with serving() as web:
        web.files[URL_PATH] = archive.read_bytes()
        sets = {
            "data.cifar100.uri": f"{web.url}{URL_PATH}",
            "data.cifar100.sha256": sha256,
            "train.epochs": 8,
            "train.global_batch_size": 100,
            "resources.cpus_per_worker": 0.5,
            "storage": tmp_path,
        }
        command = [sys.executable, EXAMPLE / "strategies.py", "--workers", "2", *set_options(sets)]
        done = ran(command, code=0, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert web.ranges == [None], "the archive was fetched once, as a whole"
    assert "evaluated at step 80" in done.stdout
    row = re.search(r"DDP\W+2\W+([\d.]+) s\W+([\d,]+)\W+([\d.]+)\W+-", done.stdout)
    seconds, samples_per_s, accuracy = (float(text.replace(",", "")) for text in row.groups())
    assert seconds * samples_per_s == pytest.approx(8 * TRAIN, rel=0.1)
    assert accuracy >= 0.5, "of 100 classes; 0.01 is chance"
    assert "torch can use 0 here" in done.stdout
