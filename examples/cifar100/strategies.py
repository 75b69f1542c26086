"""Runs job.yaml in one process, with nn.DataParallel, and with DDP on more and more workers; compares them.

    python strategies.py                      # all GPUs of this machine; without one, its CPU cores
    python strategies.py --workers 1 2 --set train.epochs=2

Each row is a run of its own, `clustertrain run job.yaml --set …`. Speed and time are those of the training
steps: the start, the download, the evaluations and the saves do not count. nn.DataParallel exists here only
for this comparison.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from cifar100 import Cifar100
from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from torch import nn

from clustertrain import load_job
from clustertrain.errors import JobError

JOB = Path(__file__).with_name("job.yaml")
ONE_LINE = "train.log_every=1000000000"  # the speed in the only line of a run is that of all its steps


class DataParallelCifar100(Cifar100):
    """One process that splits each batch among all GPUs it can use."""

    def model(self):
        return nn.DataParallel(super().model())


@dataclass(frozen=True)
class Strategy:
    name: str
    devices: int  # GPUs or CPU cores
    sets: tuple[str, ...]  # what its run changes in job.yaml


@dataclass(frozen=True)
class Measured:
    strategy: Strategy
    seconds: float
    samples_per_s: float
    accuracy: float


def strategies(job, workers, gpus):
    """The rows of the table, and a note if there is none for DataParallel."""
    per_worker = f"resources.gpus_per_worker={min(gpus, 1)}"
    single = Strategy("one process", 1, ("resources.workers=1", per_worker, f"name={job.name}-single"))
    found = [
        Strategy("DDP", n, (f"resources.workers={n}", per_worker, f"name={job.name}-ddp-{n}"))
        for n in workers
        if n != 1
    ]
    note = ""
    if gpus >= 2:
        found.insert(0, data_parallel(job, min(gpus, max(workers))))
    else:
        note = (
            "DataParallel is left out: it splits each batch among the GPUs of one process, "
            f"and torch can use {gpus} here."
        )
    return [single, *found] if 1 in workers else found, note


def data_parallel(job, gpus):
    sets = [
        "task=strategies:DataParallelCifar100",
        "resources.workers=1",
        f"resources.gpus_per_worker={gpus}",
        f"name={job.name}-dataparallel",
    ]
    if job.train.batch_size:  # of one worker: the only worker takes the samples of all GPUs
        sets.append(f"train.batch_size={job.train.batch_size * gpus}")
    return Strategy("DataParallel", gpus, tuple(sets))


def measure(strategy, sets):
    """Runs it and reads its speed from the table of `clustertrain ls`."""
    sets = [*sets, *strategy.sets, ONE_LINE]
    job = load_job(JOB, sets)
    options = [text for each in sets for text in ("--set", each)]
    program = [sys.executable, "-m", "clustertrain.cli"]
    with subprocess.Popen([*program, "run", str(JOB), "--fresh", *options]) as run:
        try:
            run.wait()
        except KeyboardInterrupt:
            run.wait()  # Ctrl-C reaches the run as well: it stops by itself
    if run.returncode:
        sys.exit(run.returncode)  # the run has printed why
    listing = [*program, "ls", job.storage.uri, "--metric", "samples_per_s:max,accuracy", "--json"]
    printed = subprocess.run(listing, stdout=subprocess.PIPE, check=True).stdout
    row = next(row for row in json.loads(printed) if row["name"] == job.name)
    batch = job.train.global_batch_size or job.train.batch_size * job.resources.workers
    speed = row["metrics.samples_per_s.last"]
    return Measured(strategy, row["step"] * batch / speed, speed, row["metrics.accuracy.last"])


def report(measured, device):
    """A table, and a plot of the speeds."""
    single = next((each.samples_per_s for each in measured if each.strategy.devices == 1), None)
    table = Table("strategy", device, "time", "samples/s", "accuracy", "speed-up")
    for column in table.columns[1:]:
        column.justify = "right"
    plot = Table.grid(padding=(0, 1))
    fastest = max(each.samples_per_s for each in measured)
    for each in measured:
        name, devices = each.strategy.name, str(each.strategy.devices)
        speed = f"{each.samples_per_s:,.0f}"
        speed_up = f"{each.samples_per_s / single:.2f}" if single else "-"
        table.add_row(name, devices, f"{each.seconds:.1f} s", speed, f"{each.accuracy:.4f}", speed_up)
        plot.add_row(name, devices, Bar(fastest, 0, each.samples_per_s, width=40), speed)
    console = Console(highlight=False)
    console.print(table)
    console.print("samples/s", plot, sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        help="numbers of workers; default: 1, 2, 4, … up to the GPUs or CPU cores",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every run")
    args = parser.parse_args()
    gpus = torch.cuda.device_count()
    devices = gpus or len(os.sched_getaffinity(0))
    try:
        job = load_job(JOB, args.set)
        batch = job.train.global_batch_size or 0
        powers = [2**power for power in range(devices.bit_length())]
        rows, note = strategies(job, args.workers or [n for n in powers if batch % n == 0], gpus)
        for row in rows:  # before the first run: the last one may be what is refused
            load_job(JOB, [*args.set, *row.sets])
    except JobError as error:
        parser.exit(error.exit_code, f"error: {error}\n")
    measured = []
    try:
        for row in rows:
            measured.append(measure(row, args.set))
    finally:  # also with the rows before one that failed
        if measured:
            report(measured, "GPUs" if gpus else "CPU cores")
        print(note)


if __name__ == "__main__":
    main()
