"""The trial of a task that has never trained in this form, before its first step.

The ranks of a run try it, and so does the rehearsal of `check` in one process. A batch of the evaluation goes
through every metric, and `images` is called. No weight changes, and the random states, the buffers and the
order of the data are as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.training.data.sampling import MicroBatch
from clustertrain.training.evaluation import check_reported
from clustertrain.training.model.building import discarding
from clustertrain.training.model.model_calls import calling_model
from clustertrain.training.nested_tensors import map_tensors
from clustertrain.training.preparing import Prepared
from clustertrain.training.saving import check_readable
from clustertrain.training.step.counted import parts
from clustertrain.training.summed_loss import sum_warning
from clustertrain.training.task_errors import check_loss, first_batch, refusing, refusing_loss
from clustertrain.training.task_state import TaskState
from clustertrain.training.values import Batch

_SETTLING_PASSES = 2


def first_of(prepared: Prepared, batches: Iterator[tuple[MicroBatch, Batch]]) -> tuple[MicroBatch, Batch]:
    """Return the first of the batches.

    One that cannot be read is read again in this process, whose error has the line.

    Raises:
        JobError: the data set cannot return it.
    """
    try:
        return next(batches)
    except ClusterTrainError:
        raise
    except Exception:
        first_batch(prepared.task, "train_data", prepared.training_data, next(iter(prepared.order)))
        raise


def settle_buckets(prepared: Prepared, batch: Batch) -> None:
    """Run two passes and discard their gradients, buffers and random numbers; without DDP one.

    DDP rebuilds its gradient buckets after it has seen the order in which gradients become ready. With three
    or more ranks the buckets determine the order of summation. If the first training steps after each start
    did this, a resumed run would differ from an uninterrupted one in the last bit. The first pass records the
    order, the second builds the buckets that all steps then use. FSDP has no buckets; its pass finds out
    before the first step whether the model works in these blocks.

    Raises:
        JobError: the loss has a mistake, does not call the model, or parameters have no gradient (DDP).
    """
    has_buckets = isinstance(prepared.wrapped, DistributedDataParallel) and prepared.rank_info.world_size > 1
    with discarding(prepared.model, prepared.rank_info.device):
        for _ in range(_SETTLING_PASSES if has_buckets else 1):
            _try_pass(prepared, batch)
            prepared.awaited.check()
            prepared.wrapped.zero_grad(set_to_none=True)


def _try_pass(prepared: Prepared, batch: Batch) -> None:
    task, wrapped = prepared.task, prepared.wrapped
    calling = calling_model(task, wrapped) if prepared.world_size > 1 else nullcontext()
    with refusing_loss(task, batch):
        with prepared.precision.autocast(), calling:
            returned = task.loss(wrapped, map_tensors(batch, torch.clone))
        check_loss(task, returned)
        parts(returned)[0].backward()


def try_task(prepared: Prepared, batch: Batch) -> tuple[tuple[str, ...], str]:
    """Try a task with a batch on the device. Every rank calls it.

    Returns:
        the names of an evaluation's values, none without evaluation data; and a warning, or "".

    Raises:
        JobError: the task has a mistake; names the line of the user's code.
    """
    task, model, precision = prepared.task, prepared.model, prepared.precision
    device = prepared.rank_info.device
    with discarding(model, device):
        try:
            _try_state(prepared)
            names = _try_evaluation(prepared)
        except JobError:
            if prepared.rank_info.world_size == 1:  # several have settled their buckets with the loss
                _try_pass(prepared, batch)  # a mistake in it is the one to name
            raise
    return names, sum_warning(task, model, batch, precision=precision, device=device)


def _try_state(prepared: Prepared) -> None:
    """Check that a resume can read what a checkpoint has."""
    with refusing(prepared.task, "model", remedy=""):
        check_readable({"model": prepared.model.state_dict()})
    with refusing(prepared.task, "scheduler", remedy=""):
        check_readable(prepared.optimization.state())
    if prepared.order.start.step == 0:  # a resume has just done it
        TaskState(prepared.task, prepared.model).rehearse()


def _try_evaluation(prepared: Prepared) -> tuple[str, ...]:
    names, evaluation = None, prepared.evaluation
    if evaluation is not None:
        names = tuple(evaluation.of_one_batch())
        with refusing(prepared.task, "images", remedy="Return images by name: (channels, height, width)."):
            evaluation.images(0)
    check_reported(prepared.settings, prepared.task, names)
    return names or ()
