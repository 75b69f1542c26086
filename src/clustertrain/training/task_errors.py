"""What the user's code raises before the first step, as a JobError with the line of the user's file.

Only for calls before the first step and outside collectives: later an exception may come from a lost peer or
a broken GPU, and a JobError would rule out a restart.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch

from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.training.data.loader_kinds import batch_fetch
from clustertrain.training.data.sampling import MicroBatch
from clustertrain.training.data.streaming import is_stream
from clustertrain.training.ranks.rng import private_rng
from clustertrain.training.step.counted import parts
from clustertrain.training.task import Task, collate_of
from clustertrain.training.user_frames import OWN, source_lines_of

# Errors of this machine, its memory or its GPU, say nothing about the job: they stay as they are.
OF_THE_MACHINE = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
_TEXT_MAX = 300


@contextmanager
def refusing(task: Task, *methods: str, remedy: str, what: str = "") -> Iterator[None]:
    """Turn an exception inside into a JobError that names what raised it, the user's line and the remedy.

    Args:
        methods: the methods of the task that are called inside.
        what: what raises, if it is not one of the methods but, for example, a metric.

    Raises:
        JobError: for any exception except those of memory or of a GPU; a JobError gets the method's line.
    """
    try:
        yield
    except JobError as error:
        method = _raising(error, task, methods)
        raise JobError(f"{error}\n{_name(task, method)} is at {_definition(task, method)}.") from error
    except (ClusterTrainError, *OF_THE_MACHINE):
        raise
    except Exception as error:
        method = _raising(error, task, methods)
        raise JobError(
            f"{what or _name(task, method)} raised {said(error)}\nAt {_place(error, task, method)}.\n{remedy}"
        ) from error


def first_batch(task: Task, method: str, dataset: Any, key: MicroBatch) -> Any:
    """The batch of `key` on the CPU; `method` of the task returned the data set.

    Raises:
        JobError: a sample cannot be read, or the samples do not collate; names the sample.
    """
    try:
        return batch_fetch(dataset, collate_of(task), _name(task, method))[key]
    except (ClusterTrainError, *OF_THE_MACHINE):
        raise
    except Exception as error:
        raise JobError(_why_no_batch(error, task, method, dataset, key)) from error


def _why_no_batch(error: Exception, task: Task, method: str, dataset: Any, key: MicroBatch) -> str:
    if is_stream(dataset):
        part = "collate" if type(task).collate is not Task.collate else method
        return (
            f"The first batch of {_name(task, method)} raised {said(error)}\n"
            f"At {_place(error, task, part)}.\nCorrect the data set, or override collate."
        )
    shapes = []
    with private_rng(key.seed):
        for i in key.ids:
            try:
                sample = dataset.__getitems__([i])[0] if hasattr(dataset, "__getitems__") else dataset[i]
            except Exception as of_sample:  # noqa: BLE001  any exception of the user's code is reported
                return (
                    f"Sample {i} of {_name(task, method)} raised {said(of_sample)}\n"
                    f"At {_place(of_sample, task, method)}.\nCorrect the data set or the sample."
                )
            shapes.append(described(sample))
    first, own = key.ids[0], type(task).collate is not Task.collate
    text = f"The samples of {_name(task, method)} do not collate into a batch: {said(error)}\n"
    if own:
        text = f"{_name(task, 'collate')} raised {said(error)}\n"
    where = f"At {_place(error, task, 'collate' if own else method)}."
    for i, shape in zip(key.ids, shapes, strict=True):
        if shape != shapes[0]:
            remedy = "Give all samples one shape and one type, or override collate."
            return f"{text}Sample {first} is {shapes[0]}; sample {i} is {shape}.\n{remedy} {where}"
    remedy = "Return tensors, arrays or numbers, or override collate."
    return f"{text}Each of the {len(shapes)} samples is {shapes[0]}.\n{remedy} {where}"


def check_loss(task: Task, loss: Any) -> None:
    """
    Raises:
        JobError: it is neither a tensor with one number nor a pair of one and a count, or no gradient can be
            computed from it.
    """
    name = _name(task, "loss")
    loss, count = parts(loss)
    is_tensor = isinstance(count, torch.Tensor) and count.numel() == 1 and not count.requires_grad
    if not (count is None or is_tensor or isinstance(count, int | float)):
        raise JobError(
            f"{name} returned a pair, and its second part is {described(count)}, not a count.\n"
            "Return the mean over the batch, or (sum, count): the sum, and of how many it is."
        )
    if not isinstance(loss, torch.Tensor):
        raise JobError(
            f"{name} returned {type(loss).__name__}, not a tensor.\n"
            "Return the mean over the batch as a tensor."
        )
    if loss.numel() != 1:
        raise JobError(
            f"{name} returned shape {tuple(loss.shape)}, not a scalar.\nReturn the mean over the batch."
        )
    if not loss.requires_grad:
        raise JobError(
            f"{name} returned a tensor that needs no gradient: no parameter would be trained.\n"
            "Compute it from the model's outputs, without detach(), item() or torch.no_grad()."
        )


def said(error: BaseException) -> str:
    """The type of an error and the first line of its text; for a file that is not found, also the folder."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[0].strip()[:_TEXT_MAX] if lines else ""
    if isinstance(error, FileNotFoundError) and not Path(str(error.filename or "/")).is_absolute():
        text += f" (the working directory is {Path.cwd()})"
    return f"{type(error).__name__}: {text}" if text else f"{type(error).__name__}."


def described(value: Any) -> str:
    """Types, dtypes and shapes of nested values: "(float32 (8, 64), int64 (8,))"."""
    text = _described(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]} …"


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_described(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_described(item) for item in value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_described(item) for item in value) + "]"
    return type(value).__name__


def _name(task: Task, method: str) -> str:
    return f"{type(task).__name__}.{method}()"


def _raising(error: BaseException, task: Task, methods: tuple[str, ...]) -> str:
    """The first of the methods in the traceback; without one, that of the message, or the first of all."""
    codes = {getattr(_function(task, method), "__code__", None): method for method in methods}
    named = (method for method in methods if f".{method}()" in str(error))
    return next(
        (codes[frame.f_code] for frame, _ in walk_tb(error.__traceback__) if frame.f_code in codes),
        next(named, methods[0]),
    )


def _place(error: BaseException, task: Task, method: str) -> str:
    """File and line of the innermost frame of the user's code; without one, where `method` is defined."""
    home = Path(_definition(task, method).rpartition(":")[0]).parent
    frames = ((frame.f_code, line) for frame, line in walk_tb(error.__traceback__))
    own = source_lines_of(OWN, ((code.co_filename, line, code.co_name) for code, line in frames), str(home))
    return f"{own[0][0]}:{own[0][1]}" if own else _definition(task, method)


def _function(task: Task, method: str) -> Any:
    return inspect.unwrap(getattr(type(task), method))


def _definition(task: Task, method: str) -> str:
    """File and line of the method; of the class, if it does not override the method."""
    inherited = getattr(type(task), method) is getattr(Task, method, None)
    code = getattr(_function(task, method), "__code__", None)
    if code is not None and not inherited:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(type(task))}:{inspect.getsourcelines(type(task))[1]}"
    except (OSError, TypeError):  # a class without a file
        return type(task).__module__
