"""A rehearsal of a task in one process, before a cluster starts: one training batch, one evaluation batch.

It prepares the task as the loop does, and tries what the ranks try before their first step, with the first
batch of rank 0. It does not compile the model, starts no loader processes and changes no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from clustertrain.training.data.loader_kinds import batch_fetch, processes_of
from clustertrain.training.data.loading import sent_copy, to_device
from clustertrain.training.model.blocks import find_blocks
from clustertrain.training.preparing import Prepared
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.rng import restoring_rng
from clustertrain.training.sanity import settle_buckets, try_task
from clustertrain.training.settings import TrainSettings
from clustertrain.training.task import Task, collate_of
from clustertrain.training.task_errors import first_batch, refusing


def rehearse(
    task: Task,
    settings: TrainSettings,
    device: torch.device,
    data: Mapping[str, Path],
    *,
    world_size: int = 1,
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[str, ...]:
    """Rehearse a run of `world_size` ranks in this process.

    In a process group, of one rank, the loss gets the model in DDP as in the run.

    The random states of this process are restored. On a CPU, for a job whose workers have GPUs, the caller
    replaces the settings that need a GPU: precision fp16, sync_batchnorm.

    Args:
        warn: gets what is probably a mistake, and no refusal.

    Returns:
        the names of an evaluation's values, as logged; empty without evaluation data.

    Raises:
        JobError: task, settings and data do not fit together; names the line of the user's code.
        MemoryError, torch.OutOfMemoryError, torch.AcceleratorError: of this machine, not of the job.
    """
    alone, in_process = RankInfo(0, 0, 1, device), replace(settings, loader_workers=0, compile=None)
    with restoring_rng(device):
        prepared = Prepared(
            task, in_process, alone, data, saved=None, note=lambda text: None, world_size=world_size
        )
        if settings.strategy == "fsdp" and world_size > 1:
            with refusing(task, "model", remedy=""):
                find_blocks(task, prepared.model, settings)
        training_data = prepared.training_data
        if processes := processes_of(training_data, settings.processes):
            sent_copy(batch_fetch(training_data, collate_of(task), ""), processes)
        key = next(iter(prepared.order))
        batch = to_device(first_batch(task, "train_data", training_data, key), device)
        settle_buckets(prepared, batch)
        names, warning = try_task(prepared, batch)
        if warning:
            warn(f"warning: {warning}")
        return names
