"""Imports, checks and creates the user's code by the name in the job file; an error names the line."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.job.model import Job
from clustertrain.job.source import check_source, imported_now
from clustertrain.node import variables
from clustertrain.node.interpreter import interpreter_file
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.working_folder import working_folder
from clustertrain.training.user_frames import defined_at
from clustertrain.worker.code.error_report import first_lines
from clustertrain.worker.code.user_error import report_of

if TYPE_CHECKING:  # it imports torch, which takes seconds: the driver does that while Ray starts
    from clustertrain.training.task import Task

OF_FILES = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


_OURS = {  # in place of methods that Lightning and others call
    "sampler": "sample_weights(dataset)",
    "train_dataloader": "train_data(data)",
    "val_dataloader": "eval_data(data)",
    "test_dataloader": "eval_data(data)",
    "training_step": "loss(model, batch)",
    "validation_step": "eval_step(model, batch)",
    "configure_optimizers": "optimizer(model) and scheduler(optimizer, total_steps)",
    "on_train_batch_end": "on_step(step, metrics)",
    "on_train_epoch_end": "on_epoch(epoch)",
    "on_validation_end": "on_eval(step, metrics)",
    "on_validation_epoch_end": "on_eval(step, metrics)",
    "on_save_checkpoint": "state_dict()",
    "on_load_checkpoint": "load_state_dict(state)",
}


class ImportRefused(JobError):
    """A module of the user does not import. Its __cause__ is the error."""


def code_folders(job: Job) -> tuple[Path, ...]:
    """Return the folders of the job's code on this node.

    They are the folders that the agent unpacked, or the folders of the job file.
    """
    unpacked = os.environ.get(variables.CODE)
    return tuple(map(Path, unpacked.split(os.pathsep) if unpacked else job.code))


def works_in(run: RunDir, job: Job) -> Path:
    """Return the working directory of the job's code on this node.

    For a submitted run it is a folder of the run if the nodes share one, else the first folder of the code.
    """
    own = working_folder(run, job) if os.environ.get(variables.CODE) else None
    return own or code_folders(job)[0]


def enter_code(job: Job, cwd: Path | None = None) -> None:
    """Make the folders of the code the first on the import path, and `cwd` the working directory.

    `cwd` is by default the first of them. `parse_args()` in the code sees no arguments, because the arguments
    of this process are not the job's.

    Raises:
        JobError: as `check_source`; also for a start without the check.
    """
    folders = code_folders(job)
    check_source(job, folders)
    sys.argv = sys.argv[:1]
    sys.path[:0] = map(str, folders)
    os.chdir(cwd or folders[0])


def _own_folder() -> str:
    """Return the folder of the code, whose lines an error names."""
    unpacked = os.environ.get(variables.CODE)
    return unpacked.partition(os.pathsep)[0] if unpacked else str(Path.cwd())


def load_object(spec: str, kind: str) -> Any:
    """Import `pkg.module:name`.

    Raises:
        ImportRefused: the import fails; names the line of the user's file.
        JobError: the module does not have the name; names the nearest one.
        OSError: a file or a server that the module needs cannot be read now.
    """
    module_name, _, attribute = spec.partition(":")
    imported_now.append(spec)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and not isinstance(error, OF_FILES):
            raise  # of the storage or the network: another start may help
        report = report_of(error, _own_folder())
        what = f"{report.name}: {first_lines(report.message, lines=3, characters=600)}"
        raise ImportRefused(f"{kind}: {spec} does not import: {what}\nAt {place_of(error)}.") from error
    finally:
        imported_now.remove(spec)
    try:
        return getattr(module, attribute)
    except AttributeError:
        names = sorted(name for name in vars(module) if not name.startswith("_"))
        near = get_close_matches(attribute, names, n=1)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        raise JobError(
            f"{kind}: {spec} names {attribute!r}, which {_file_of(module)} does not have.\n"
            f"{hint}It has: {', '.join(names[:8])}."
        ) from None


def _file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or f"the module {module.__name__}"


def place_of(error: BaseException) -> str:
    """Return `FILE:LINE in FUNCTION` of an exception, the innermost of the user's code.

    Without a line of the user's code, return its folder.
    """
    frames = report_of(error, _own_folder()).frames
    return str(frames[0]) if frames else f"`code`, the folder {_own_folder()}"


def check_task(spec: str) -> type[Task]:
    """Return the Task class that a job names.

    Raises:
        JobError: it does not import, is not a subclass of clustertrain.Task, or has a method that only
            another framework calls.
    """
    from clustertrain.training.task import Task

    cls = load_object(spec, "task")
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise JobError(
            f"task: {spec} is {cls!r}, not a subclass of clustertrain.Task.\n"
            "Derive the class from clustertrain.Task, or name a function with its own loop as `function:`."
        )
    if foreign := [name for name in _OURS if callable(getattr(cls, name, None))]:
        raise JobError(
            f"task: {spec} has methods that clustertrain never calls: {', '.join(foreign)}.\n"
            f"Write in their place: {', '.join(dict.fromkeys(_OURS[name] for name in foreign))}.\n"
            f"At {defined_at(getattr(cls, foreign[0]))}."
        )
    return cls


def check_code(job: Job) -> None:
    """Import the task or function that the job names, or find the script's interpreter; calls none of it.

    Raises:
        JobError: it is missing or does not import, or does not take the job's args; names the line.
    """
    if job.task:
        args_of(check_task(job.task), job)
    elif job.function:
        check_function(job.function)
    elif job.interpreter:
        interpreter_file(job.interpreter)


def check_function(spec: str) -> Callable[[dict[str, Any]], object]:
    """Return the function that a job names.

    Raises:
        JobError: it does not import, cannot be called, or does not take one argument, or a call runs none of
            its code.
    """
    function: Callable[[dict[str, Any]], object] = load_object(spec, "function")
    if not callable(function):
        raise JobError(
            f"function: {spec} is {function!r}, which cannot be called.\n"
            "Name a function that takes one argument, args."
        )
    if (yields := inspect.isgeneratorfunction(function)) or inspect.iscoroutinefunction(function):
        remedy = "Move the yield into a function of its own" if yields else "Write it without async"
        raise JobError(
            f"function: {spec} {'contains yield' if yields else 'is async'}: a call runs none of its code.\n"
            f"{remedy}.\nAt {defined_at(function)}."
        )
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # of C, which does not show its parameters
        return function
    try:
        signature.bind({})
    except TypeError:
        parameters = str(signature).partition(" -> ")[0][1:-1]
        raise JobError(
            f"function: {spec} takes ({parameters}), but it is called with one argument, the job's `args`.\n"
            f"Write it as: def train(config)\nAt {defined_at(function)}."
        ) from None
    return function


def args_of(cls: type[Task], job: Job) -> dict[str, Any]:
    """Return the `args` of a job for its task.

    Raises:
        JobError: the task does not take them.
    """
    args = dict(job.args) if isinstance(job.args, dict) else {}
    signature = inspect.signature(cls)
    try:
        signature.bind(**args)
    except TypeError as error:
        names, where = ", ".join(signature.parameters) or "no arguments", defined_at(cls.__init__, cls)
        raise JobError(f"args: {cls.__name__}: {error}.\nIt takes: {names}.\nAt {where}.") from None
    return args


def make_task(cls: type[Task], job: Job) -> Task:
    """Make the Task with the job's args.

    Before its __init__ the random states are set from the seed, on every rank and at every start.

    Raises:
        JobError: its __init__ raises an exception.
        Exception: from __init__, of the network, the storage, the memory or a GPU.
    """
    from clustertrain.training.ranks.rng import seed_all
    from clustertrain.training.task_errors import OF_THE_MACHINE, said

    args = args_of(cls, job)
    seed_all(job.train.seed if job.train is not None else 0, rank=0)
    try:
        return cls(**args)
    except (ClusterTrainError, *OF_THE_MACHINE):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and not isinstance(error, OF_FILES):
            raise
        raise JobError(
            f"task: {job.task} with args {sorted(args)} raised {said(error)}\nAt {place_of(error)}."
        ) from error
