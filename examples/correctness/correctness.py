"""The demonstrations of docs/concepts/several-ranks.md: what several ranks change in the numbers.

clustertrain run job.yaml
torchrun --nproc-per-node 2 correctness.py

Every rank calls each function, because some of them use collectives; rank 0 prints the lines.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.constants import default_pg_timeout
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from clustertrain import Task
from clustertrain.training.data.loader_kinds import evaluation_keys
from clustertrain.training.data.sampling import BatchSizes, Position, TrainOrder
from clustertrain.training.evaluation import Evaluation
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.settings import LearningRate, TrainSettings
from clustertrain.training.step.optimization import lr_factor
from clustertrain.training.step.precision import Precision

RANKS = 2
CPU = torch.device("cpu")


# Shuffling and set_epoch


def batches_of_sampler(rank: int, epoch: int | None) -> list[list[int]]:
    """The batches of 5 that a rank trains on in an epoch; with None, set_epoch is not called."""
    sampler = DistributedSampler(range(21), num_replicas=RANKS, rank=rank, seed=0)
    if epoch is not None:
        sampler.set_epoch(epoch)
    return [batch.tolist() for batch in DataLoader(range(21), batch_size=5, sampler=sampler)]


def batches_of_clustertrain(rank: int, epoch: int) -> list[list[int]]:
    settings = TrainSettings(epochs=epoch + 1, batch_size=5)
    sizes = BatchSizes.of(settings, RANKS, samples=21)
    order = TrainOrder(settings, sizes, samples=21, rank=rank, start=Position(epoch=epoch))
    return [batch.ids for batch in order]


def set_epoch() -> list[str]:
    each = math.ceil(21 / RANKS)
    lines = [
        f"21 samples, {RANKS} ranks, batch 5: ceil(21 / {RANKS}) = {each} samples per rank and epoch, "
        f"{each * RANKS} in all"
    ]
    lines += ["", "DistributedSampler without set_epoch"]
    for epoch in (0, 1):
        lines += _epoch_lines(epoch, [batches_of_sampler(rank, None) for rank in range(RANKS)])
    lines += ["", "DistributedSampler with set_epoch(epoch)"]
    for epoch in (0, 1):
        lines += _epoch_lines(epoch, [batches_of_sampler(rank, epoch) for rank in range(RANKS)])
    lines += ["", "clustertrain"]
    for epoch in (0, 1):
        lines += _epoch_lines(epoch, [batches_of_clustertrain(rank, epoch) for rank in range(RANKS)])
    return lines


def _epoch_lines(epoch: int, of_ranks: list[list[list[int]]]) -> Iterable[str]:
    for rank, batches in enumerate(of_ranks):
        shown = " | ".join(" ".join(f"{i:2}" for i in batch) for batch in batches)
        yield f"  epoch {epoch}, rank {rank}: {shown}"
    counts = Counter(i for batches in of_ranks for batch in batches for i in batch)
    twice, never = [i for i in counts if counts[i] == 2], [i for i in range(21) if i not in counts]
    yield f"  epoch {epoch}: used twice: {_listed(twice)}; not used: {_listed(never)}"


def _listed(ids: list[int]) -> str:
    return " ".join(f"sample {i}" for i in ids) or "none"


# Evaluation with padding

RARE = range(30)  # the samples of the rare class: a data set that is sorted by class
FOUND = {*range(15), *range(985, 1000)}  # those that the model takes for it: 15 rightly, 15 wrongly


def padded_to_steps(samples: int, ranks: int, batch: int) -> list[int]:
    """All samples, then those from the beginning again, up to a multiple of ranks × batch."""
    steps = math.ceil(samples / (ranks * batch))
    return [i % samples for i in range(steps * ranks * batch)]


def rates(counted: Iterable[int]) -> tuple[float, float, float, float]:
    """(precision, recall, F1, accuracy) over the counted samples."""
    ids = list(counted)
    right = sum(i in FOUND and i in RARE for i in ids)
    found, rare = sum(i in FOUND for i in ids), sum(i in RARE for i in ids)
    wrong = sum((i in FOUND) != (i in RARE) for i in ids)
    return right / found, right / rare, 2 * right / (found + rare), 1 - wrong / len(ids)


def padding() -> list[str]:
    ranks, batch, samples = 8, 64, 1000
    step = ranks * batch
    padded = padded_to_steps(samples, ranks, batch)
    twice = sorted(i for i, count in Counter(padded).items() if count == 2)
    mine = [evaluation_keys(range(samples), samples, batch, rank, ranks) for rank in range(ranks)]
    once = [i for batches in mine for part in batches for i in part.ids]
    lines = [
        f"{samples} samples, {ranks} ranks × batch {batch} = {step} per step: "
        f"ceil({samples} / {step}) = {len(padded) // step} steps, {len(padded)} samples",
        f"padded to whole steps: {len(padded)} - {samples} = {len(twice)} samples are counted twice, "
        f"samples {twice[0]} to {twice[-1]}",
    ]
    for size in (samples, samples + 1):
        total = sum(len(DistributedSampler(range(size), ranks, rank, shuffle=False)) for rank in range(ranks))
        lines.append(
            f"DistributedSampler, {size} samples: {ranks} × ceil({size} / {ranks}) = {total}: "
            f"{total - size} twice"
        )
    sizes = " + ".join(str(len(part.ids)) for part in mine[0])
    lines += [
        f"clustertrain: {ranks} ranks × ({sizes}) = {len(once)}: {len(once) - len(set(once))} twice",
        "",
        f"rare class: {len(RARE)} samples, {RARE[0]} to {RARE[-1]}; the model finds "
        f"{len(FOUND & set(RARE))} of them, and {len(FOUND - set(RARE))} others",
        f"{'':24}samples  precision  recall     F1  accuracy",
    ]
    for name, ids in (("each sample once", once), ("padded to whole steps", padded)):
        precision, recall, f1, accuracy = rates(ids)
        lines.append(f"{name:24}{len(ids):7}{precision:11.3f}{recall:8.3f}{f1:7.3f}{accuracy:10.3f}")
    return lines


# Batch size per worker and global


def batch_sizes() -> list[str]:
    samples = 50_000
    lines = [f"{samples} samples"]
    for settings in (
        TrainSettings(epochs=1, batch_size=64, lr=LearningRate("linear")),
        TrainSettings(epochs=1, global_batch_size=64, lr=LearningRate("linear", 64)),
    ):
        key = "batch_size" if settings.batch_size else "global_batch_size"
        lines += ["", f"{key}: 64", "  workers  per worker  global  steps per epoch  lr linear  lr sqrt"]
        for workers in (1, 2, 4, 8):
            sizes = BatchSizes.of(settings, workers, samples)
            order = TrainOrder(settings, sizes, samples, rank=0, start=Position())
            total = sizes.global_batch_size
            factors = [lr_factor(rule, total, 64) for rule in ("linear", "sqrt")]
            lines.append(
                f"  {workers:7}{sizes.batch_size:12}{total:8}{order.steps_per_epoch:17}"
                f"{f'× {factors[0]:.0f}':>11}{f'× {factors[1]:.3f}':>9}"
            )
    one, parts, of_ddp = gradients()
    shown = [f"rank {rank}: {value:.0f}" for rank, value in enumerate(parts)]
    return [
        *lines,
        "",
        f"the gradient over a batch of 10, one process: {one:.0f}",
        f"the same samples, {RANKS} ranks × batch 5: {', '.join(shown)}; averaged by DDP: {of_ddp:.0f}",
    ]


def line(weight: float = 0.0) -> nn.Linear:
    """x ↦ weight × x"""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def gradient(model: nn.Module, x: torch.Tensor) -> float:
    """The gradient of the mean of (model(x) - x)², of the model's only weight."""
    (parameter,) = model.parameters()
    parameter.grad = None
    (model(x[:, None]) - x[:, None]).square().mean().backward()
    return parameter.grad.item()


def gradients() -> tuple[float, list[float], float]:
    """(in one process, of each rank, after DDP) for the samples 1 to 10."""
    x = torch.arange(1.0, 11.0)
    parts = [gradient(line(), x[rank::RANKS]) for rank in range(RANKS)]
    return gradient(line(), x), parts, gradient(DistributedDataParallel(line()), x[dist.get_rank() :: RANKS])


# BatchNorm on several ranks


def batch_norm() -> list[str]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 4, 3, 3, generator=generator)
    lines = ["the output for 10 samples of 4 × 3 × 3 on 2 ranks × batch 5, less that of one process, at most"]
    for layer in (nn.BatchNorm2d(4), nn.GroupNorm(2, 4)):
        mine = slice(dist.get_rank(), None, RANKS)
        difference = (layer(x[mine]) - layer(x)[mine]).abs().max().detach()
        dist.all_reduce(difference, dist.ReduceOp.MAX)
        lines.append(f"  {type(layer).__name__:12}{difference.item():.2f}")
    return lines


# Move the model, then wrap it


def move_then_wrap() -> list[str]:
    """On CPUs the move is one to another dtype: for autograd it is the same as one to another device."""
    x = torch.full((1,), 1.0 + dist.get_rank(), dtype=torch.float64)
    before = DistributedDataParallel(line().double())
    after = DistributedDataParallel(line())
    after.double()
    lines = ["the gradients of the ranks, one step"]
    for name, model in (("moved, then wrapped", before), ("wrapped, then moved", after)):
        values = [torch.empty(1, dtype=torch.float64) for _ in range(RANKS)]
        dist.all_gather(values, torch.tensor([gradient(model, x)], dtype=torch.float64))
        shown = [f"rank {rank}: {value.item():.0f}" for rank, value in enumerate(values)]
        equal = "equal" if values[0] == values[1] else "different, without an error"
        lines.append(f"  {name}: {', '.join(shown)} ({equal})")
    try:
        DistributedDataParallel(line(), device_ids=[0])
    except ValueError as error:
        lines.append(f"a model on the CPU with device_ids=[0]: {type(error).__name__}")
    return lines


# Output of rank zero only


def rank_zero() -> list[str]:
    limit_s = 3
    group = dist.new_group(timeout=timedelta(seconds=limit_s))
    number = torch.tensor([dist.get_rank() + 1])
    ended = ""
    if dist.get_rank() == 0:
        try:
            dist.all_reduce(number.clone(), group=group)
        except RuntimeError as error:
            ended = type(error).__name__
    dist.all_reduce(number)  # rank 1 waits here
    dist.destroy_process_group(group)
    return [
        f"`if rank == 0: all_reduce(…)`, limit {limit_s} s: rank 0 waits for rank 1, then {ended}",
        f"torch's own limit with gloo: {default_pg_timeout.total_seconds() / 60:.0f} minutes",
        f"all_reduce on both ranks, then `if rank == 0: print(…)`: 1 + 2 = {number.item()}",
    ]


# The mean loss over ranks


class Squares(Task):
    """The loss of sample i is i²."""

    def model(self) -> nn.Module:
        return line()

    def train_data(self, data: object) -> range:
        return range(21)

    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return batch.double().square().mean()


def mean_loss() -> list[str]:
    rank = dist.get_rank()
    keys = [evaluation_keys(range(21), 21, 5, each, RANKS) for each in range(RANKS)]
    batches = [part.ids for part in keys[rank]]
    means = torch.tensor([sum(i * i for i in ids) / len(ids) for ids in batches])
    counts = torch.tensor([len(ids) for ids in batches])
    total = torch.stack([(means * counts).sum(), counts.sum().float(), means.mean()])
    of_ranks = [torch.empty(3) for _ in range(RANKS)]
    dist.all_gather(of_ranks, total)
    sums, samples, of_batches = torch.stack(of_ranks).T.tolist()
    lines = [f"21 samples, {RANKS} ranks, batch 5; the loss of sample i is i²"]
    for r in range(RANKS):
        sizes = ", ".join(str(len(part.ids)) for part in keys[r])
        lines.append(
            f"rank {r}: {samples[r]:.0f} samples in batches of {sizes}: "
            f"mean {sums[r]:.0f} / {samples[r]:.0f} = {sums[r] / samples[r]:.2f}, "
            f"mean of the batches' means {of_batches[r]:.2f}"
        )
    wanted = f"({' + '.join(f'{s:.0f}' for s in sums)}) / ({' + '.join(f'{n:.0f}' for n in samples)})"
    of_means = sum(s / n for s, n in zip(sums, samples, strict=True)) / RANKS
    return [
        *lines,
        "",
        f"rank 0 prints its own mean                   {sums[0] / samples[0]:.2f}",
        f"all_reduce of the batches' means, / {RANKS} ranks  {sum(of_batches) / RANKS:.2f}",
        f"all_reduce of the ranks' means, / {RANKS} ranks    {of_means:.2f}",
        f"all_reduce of sums and of counts             {sum(sums) / sum(samples):.2f} = {wanted}",
        f"clustertrain                                 {evaluated():.2f}",
    ]


def evaluated() -> float:
    task, rank = Squares(), dist.get_rank()
    order = TrainOrder(TrainSettings(epochs=1), BatchSizes(5, RANKS, 1), 21, rank, Position())
    evaluation = Evaluation(
        task,
        task.model(),
        torch.arange(21),
        order,
        precision=Precision("fp32", CPU),
        rank_info=RankInfo(rank, rank, RANKS, CPU),
    )
    return evaluation.run(step=0)["loss"]


# The report

SECTIONS = (set_epoch, padding, batch_sizes, batch_norm, move_then_wrap, rank_zero, mean_loss)


def report() -> dict[str, str]:
    """The lines of each section, by the name of its function; called on every rank."""
    return {section.__name__: "\n".join(section()) for section in SECTIONS}


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_world_size() != RANKS:
        sys.exit(f"{dist.get_world_size()} ranks; this demonstration needs {RANKS}: --nproc-per-node {RANKS}")
    sections = report()
    if dist.get_rank() == 0:
        for name, text in sections.items():
            print(f"--- {name}\n{text}\n", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
