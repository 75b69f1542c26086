"""What the user's code raises before the first step, as a JobError with the line of the user's file.

In a run the exception may as well come from a lost peer, the network or a GPU: whoever catches RaisedByTask
judges it by its __cause__.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch

from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.training.data.loader_kinds import batch_fetch
from clustertrain.training.data.sampling import MicroBatch
from clustertrain.training.nested_tensors import dtype_name, map_leaves
from clustertrain.training.step.counted import parts
from clustertrain.training.task import Task, collate_of
from clustertrain.training.user_frames import OWN, defined_at, source_lines_of
from clustertrain.training.values import Batch, Dataset

# Errors of this machine, its memory or its GPU, say nothing about the job: they stay as they are.
OF_THE_MACHINE = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
_TEXT_MAX = 300


class RaisedByTask(JobError):
    """The user's code raised an exception, which is the __cause__."""


@contextmanager
def refusing(task: Task, *methods: str, remedy: str, what: str = "") -> Iterator[None]:
    """Turn an exception inside into a JobError that names what raised it, the user's line and the remedy.

    Args:
        methods: the methods of the task that are called inside.
        what: what raises, if it is not one of the methods but, for example, a metric.

    Raises:
        RaisedByTask: for any exception except those of memory or of a GPU.
        JobError: as it was, and with the method's line.
    """
    try:
        yield
    except JobError as error:
        method = _raising(error, methods)
        raise JobError(f"{error}\n{_name(task, method)} is at {_definition(task, method)}.") from error
    except (ClusterTrainError, *OF_THE_MACHINE):
        raise
    except Exception as error:
        method = _raising(error, methods)
        raise RaisedByTask(
            f"{what or _name(task, method)} raised {said(error)}\nAt {_place(error, task, method)}.\n{remedy}"
        ) from error


def refusing_loss(task: Task, batch: Batch) -> AbstractContextManager[None]:
    """Turn an exception of the loss of a batch into a JobError, as `refusing` does."""
    what = f"The batch is {described(batch)}"
    return refusing(task, "loss", remedy=f"{what}: it must fit the model, and the outputs must fit the loss.")


def first_batch(task: Task, method: str, dataset: Dataset, key: MicroBatch) -> Any:
    """Fetch the batch of `key` on the CPU; `method` of the task returned the data set.

    Raises:
        JobError: a sample cannot be read, or the samples do not collate.
    """
    own = ("collate",) if type(task).collate is not Task.collate else ()
    remedy = "Give all samples one shape and one type, or override collate."
    with refusing(task, method, *own, remedy=remedy):
        return batch_fetch(dataset, collate_of(task), _name(task, method))[key]


def check_loss(task: Task, returned: Any) -> None:
    """Check that a loss is a tensor with one number, or such a tensor and a count, and needs a gradient.

    Raises:
        JobError: it is neither a tensor with one number nor a pair of one and a count, or no gradient can be
            computed from it.
    """
    name, (loss, count) = _name(task, "loss"), parts(returned)
    is_one = isinstance(count, torch.Tensor) and count.numel() == 1 and not count.requires_grad
    is_count = count is None or is_one or isinstance(count, int | float)
    if not (isinstance(loss, torch.Tensor) and loss.numel() == 1 and is_count):
        raise JobError(
            f"{name} returned {described(returned)}.\n"
            "Return the mean over the batch as a tensor, or (sum, count): the sum, and of how many it is."
        )
    if not loss.requires_grad:
        raise JobError(
            f"{name} returned a tensor that needs no gradient: no parameter would be trained.\n"
            "Compute it from the model's outputs, without detach(), item() or torch.no_grad()."
        )


def said(error: BaseException) -> str:
    """Return the type of an error and the first line of its text.

    For a file that is not found, it also has the folder.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[0].strip()[:_TEXT_MAX] if lines else ""
    if isinstance(error, FileNotFoundError) and not Path(str(error.filename or "/")).is_absolute():
        text += f" (the working directory is {Path.cwd()})"
    return f"{type(error).__name__}: {text}" if text else f"{type(error).__name__}."


class _Description(str):
    """A text that is printed inside a container without quotes."""

    __repr__ = str.__str__


def described(value: Any) -> str:
    """Return types, dtypes and shapes of nested values: "(float32 (8, 64), int64 (8,))"."""
    text = str(map_leaves(value, _description_of))
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]} …"


def _description_of(_: str, value: Any) -> _Description:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _Description(f"{dtype_name(value)} {tuple(value.shape)}")
    return _Description(type(value).__name__)


def _name(task: Task, method: str) -> str:
    return f"{type(task).__name__}.{method}()"


def _raising(error: BaseException, methods: tuple[str, ...]) -> str:
    """Return the first of the methods that the traceback or the message names, or the first of all."""
    called = {frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)}
    return next((each for each in methods if each in called or f".{each}()" in str(error)), methods[0])


def _place(error: BaseException, task: Task, method: str) -> str:
    """Return file and line of the innermost frame of the user's code, or where `method` is defined."""
    definition = _definition(task, method)
    frames = ((frame.f_code, line) for frame, line in walk_tb(error.__traceback__))
    places = ((code.co_filename, line, code.co_name) for code, line in frames)
    own = source_lines_of(OWN, places, str(Path(definition).parent))
    return f"{own[0][0]}:{own[0][1]}" if own else definition


def _definition(task: Task, method: str) -> str:
    """Return file and line of the method, or of the class if it does not override the method."""
    own = getattr(type(task), method)
    return defined_at(type(task) if own is getattr(Task, method, None) else own, type(task))
