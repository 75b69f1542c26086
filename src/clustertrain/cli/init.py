"""`clustertrain init`: writes a job file and a Task that run unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clustertrain.errors import JobError, StorageError
from clustertrain.job.values import as_name
from clustertrain.run_files.command_line import typed

JOB_YAML = """\
# Check it:  clustertrain check         Run it:  clustertrain run
version: 1
name: {name}
task: task:SineTask          # file task.py, class SineTask
args:
  lr: 0.01
  hidden: 64

train:
  epochs: 20
  batch_size: 64             # per worker
  eval_every: {{epochs: 5}}

checkpoint:
  every: {{epochs: 5}}
  keep_last: 2

resources:
  workers: 2
  cpus_per_worker: 0.5       # so two workers fit on one core; for real work give each a core or a GPU

storage: runs
"""

TASK_PY = '''\
"""A small network learns sin(x): replace the model and the data with your own."""

import torch
from clustertrain import Task
from torch import nn
from torch.utils.data import TensorDataset


class SineTask(Task):
    def __init__(self, lr: float, hidden: int) -> None:
        self.lr, self.hidden = lr, hidden

    def model(self):
        return nn.Sequential(nn.Linear(1, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1))

    def train_data(self, data):  # `data` maps the names under `data:` in the job file to paths
        return sine(4096, seed=0)

    def eval_data(self, data):
        return sine(512, seed=1)

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    def optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=self.lr)


def sine(samples, seed):
    x = torch.rand(samples, 1, generator=torch.Generator().manual_seed(seed)) * 6 - 3
    return TensorDataset(x, torch.sin(x))
'''


def write_scaffold(folder: Path) -> str:
    """Write job.yaml and task.py into a folder; returns a text with the next command.

    Raises:
        JobError, StorageError: as `write_new`.
    """
    job_file, name = folder / "job.yaml", as_name(folder.absolute().name) or "sine"
    files = {job_file: JOB_YAML.format(name=name), folder / "task.py": TASK_PY}
    write_new(files, "init", "Use another folder.")
    return f"wrote {' and '.join(map(str, files))}\nnext: {typed('run', str(job_file))}"


def write_new(files: Mapping[Path, str], command: str, remedy: str) -> None:
    """Write files, and their folders, for a command that overwrites nothing.

    Raises:
        JobError: one of them exists already; nothing was written.
        StorageError: they cannot be written.
    """
    for path in files:
        if path.exists():
            raise JobError(f"{path} exists already, and {command} overwrites nothing.\n{remedy}")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}\n{remedy}") from error
