"""Failures of a model and its data in one process: each function causes the one of its name."""

import io
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def no_gpu():
    torch.zeros(1).cuda()


def changed_in_place():
    x = torch.ones(2, requires_grad=True).exp()
    y = x.exp()
    y += 1
    y.sum().backward()


def backward_twice():
    loss = torch.ones(2, requires_grad=True).exp().sum()
    loss.backward()
    loss.backward()


def no_gradient():
    torch.ones(2).sum().backward()


def wrong_shape():
    nn.Linear(10, 2)(torch.ones(4, 12))


def wrong_type():
    nn.Linear(10, 2)(torch.ones(4, 10, dtype=torch.float64))


def label_out_of_range():
    nn.functional.cross_entropy(torch.ones(2, 3), torch.tensor([0, 7]))


def not_finite():
    with torch.autograd.detect_anomaly():
        x = torch.zeros(1, requires_grad=True)
        (x.sqrt() * 0).sum().backward()


def other_checkpoint():
    nn.Linear(2, 3).load_state_dict(nn.Linear(2, 4).state_dict())


def weights_only():
    file = io.BytesIO()
    torch.save({"path": Path("a"), "made by": io.BytesIO}, file)
    file.seek(0)
    torch.load(file, weights_only=True)


def lfs_pointer():
    Path("model.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    torch.load("model.pt", weights_only=True)


def html_not_data():
    Path("model.pt").write_text("<!DOCTYPE html><html><body>Please log in</body></html>")
    torch.load("model.pt", weights_only=True)


def torn_archive():
    torch.save(nn.Linear(100, 100).state_dict(), "model.pt")
    os.truncate("model.pt", 20_000)
    torch.load("model.pt", weights_only=True)


def batch_of_unequal_sizes():
    next(iter(DataLoader([torch.ones(2), torch.ones(3)], batch_size=2)))


class _Killed(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(2)


def loader_killed():
    for _ in DataLoader(_Killed(), num_workers=1, multiprocessing_context="fork"):
        time.sleep(0.3)


class _Large(_Killed):
    def __getitem__(self, index):
        return torch.ones(1 << 20)


def shm_too_small():
    if "IN_SMALL_SHM" not in os.environ:
        again = f"mount -t tmpfs -o size=1m none /dev/shm && IN_SMALL_SHM=1 exec {shlex.join(sys.orig_argv)}"
        os.execvp("unshare", ["unshare", "-m", "bash", "-c", again])
    for _ in DataLoader(_Large(), num_workers=1, multiprocessing_context="fork"):
        time.sleep(0.3)


def not_picklable():
    loader = DataLoader(
        TensorDataset(torch.ones(4, 2)),
        num_workers=1,
        collate_fn=lambda batch: batch,
        multiprocessing_context="spawn",
    )
    next(iter(loader))


def no_main_guard():
    Path("spawns.py").write_text(
        "import multiprocessing as m\nm.get_context('spawn').Process(target=print).start()\n"
    )
    os.execvp("python", ["python", "spawns.py"])


def compiler():
    os.environ["CXX"] = "no-such-compiler"
    torch.compile(lambda x: x.sin() + 1)(torch.ones(8))


def no_memory():
    torch.empty(1 << 50, dtype=torch.uint8)


def open_files():
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    print([os.open("/dev/null", os.O_RDONLY) for _ in range(100)])
