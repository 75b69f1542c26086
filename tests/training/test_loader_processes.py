from dataclasses import replace

import numpy
import pytest
import torch
from torch.utils.data import TensorDataset

from clustertrain.errors import JobError
from clustertrain.training.data import loader_processes, loading
from clustertrain.training.data.loader_kinds import loader_of, order_of
from clustertrain.training.data.loader_processes import processes_for
from clustertrain.training.data.loading import Fetch, Loader, sent_copy
from clustertrain.training.data.sampling import BatchSizes, MicroBatch, Position
from clustertrain.training.settings import TrainSettings
from clustertrain.training.task import collate_of
from training.ranks import ALONE
from training.tasks import Classify

pytestmark = pytest.mark.slow


class Batches:
    """On the clock of the test the first batch takes long, as a disk does at first; others `seconds`."""

    clock = 0.0

    def __init__(self, seconds):
        self.seconds, self.fetched = seconds, []

    def __getitem__(self, key):
        Batches.clock += self.seconds if self.fetched else 9.0
        self.fetched.append(key)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr("time.perf_counter", lambda: Batches.clock)


def unpicklable(fetch):
    raise JobError("train.loader_workers is auto, but the data set cannot be pickled:\na lock\nDefine it.")


@pytest.mark.parametrize(
    ("seconds", "cpus", "size", "expected", "text"),
    [
        (0.01, 8, 0, 7, "loader_workers auto: 7, because a batch takes 10.0 ms"),
        (0.01, 2.5, 0, 1, "this worker has 2.5 CPUs"),
        (0.01, 64, 0, 16, "auto: 16"),
        (0.0, 8, 0, 0, "less than from another process"),
        (0.01, 8, 300 << 20, 0, "a copy of the data set's 300 MiB"),
        (0.01, 1, 0, 0, "has 1 CPUs, one of them for training"),
        (0.01, 8, None, 0, "auto: 0, because the data set cannot be pickled: a lock"),
    ],
)
def test_the_number_follows_from_cpus_and_a_measured_batch(seconds, cpus, size, expected, text):
    batches = Batches(seconds)
    sent = unpicklable if size is None else lambda fetch: (fetch, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_processes, "sent_copy", sent)
        processes, why = processes_for(batches, [10, 20, 30], cpus)
    assert processes == expected
    assert text in why
    assert batches.fetched == ([10, 20] if cpus > 1 and size is not None else [])


def test_without_a_number_the_ranks_of_a_node_share_its_cpus(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert loader_processes.cpus_of_rank() == 8
    monkeypatch.setattr(loader_processes, "sent_copy", lambda fetch: (fetch, 0))
    assert processes_for(Batches(0.01), [1], None)[0] == 7


def test_the_bytes_that_each_process_would_copy():
    fetch = Fetch(TensorDataset(torch.zeros(1000, 4)), collate_of(Classify()))
    assert sent_copy(fetch)[1] == 16_000
    sent_copy(fetch, 1)
    with pytest.raises(JobError, match=r"train\.loader_workers is auto, but the data set cannot be pickled"):
        sent_copy(Fetch([lambda: None], collate_of(Classify())))


class Opened(torch.utils.data.Dataset):
    """A file that is opened with the first sample, as those of h5py and lmdb are."""

    def __init__(self, path):
        self.path, self.file, self.table = path, None, numpy.arange(8)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        Batches.clock += 0.01
        self.file = self.file or self.path.open("rb")
        return self.table[index]

    def __del__(self):
        if self.file:
            self.file.close()


def test_a_data_set_that_opens_its_file_late_is_sent_with_the_file_closed(tmp_path):
    (tmp_path / "samples").write_bytes(b"samples")
    dataset = torch.utils.data.Subset(Opened(tmp_path / "samples"), range(6))
    fetch = Fetch(dataset, collate_of(Classify()))
    keys = [MicroBatch([0, 1], 0, 0.5, None), MicroBatch([4, 5], 0, 0.5, None)]
    processes, why = processes_for(fetch, keys, 4)
    assert (processes, dataset.dataset.file) == (3, None), why
    loader = Loader(fetch, keys, processes=1, device=torch.device("cpu"), reuse=False)
    assert [batch.tolist() for _, batch in loader] == [[0, 1], [4, 5]]
    copy, size_bytes = sent_copy(fetch)
    assert copy._dataset.dataset.table is dataset.dataset.table and size_bytes == dataset.dataset.table.nbytes


def test_shards_are_not_timed(monkeypatch):
    monkeypatch.setattr(loader_processes, "sent_copy", lambda fetch: (fetch, 0))
    assert processes_for(Batches(9.0), None, 8)[0] == 7


def test_a_gpu_gets_the_measured_number_and_a_cpu_none(monkeypatch):
    """The settings that follow have the number, also for the evaluation."""
    task, settings = Classify(), TrainSettings(epochs=1, batch_size=4, loader_workers="auto", cpus=1)
    data = task.train_data({})
    sizes = BatchSizes.of(settings, 1, len(data))
    order = order_of(data, len(data), settings, sizes, rank=0, start=Position())
    notes = []
    _, resolved = loader_of(task, data, order, ALONE, notes.append)
    assert (settings.processes, resolved.loader_workers, notes) == (0, 0, [])
    gpu = replace(ALONE, device=torch.device("cuda", 0))
    monkeypatch.setattr(loading, "CopyToDevice", lambda device: None)  # there is no GPU
    _, resolved = loader_of(task, data, order, gpu, notes.append)
    assert resolved.loader_workers == 0
    assert notes == ["loader_workers auto: 0, because this worker has 1 CPUs, one of them for training"]
