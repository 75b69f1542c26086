"""Imports and checks the user's code by the name in the job file; an error names the line."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustertrain import variables
from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.worker.error_report import shortened
from clustertrain.worker.user_error import report_of

if TYPE_CHECKING:  # it imports torch, which takes seconds: the driver does that while Ray starts
    from clustertrain.training.task import Task

_OF_FILES = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def code_folder(job: Job) -> str:
    """The folder of the job's code on this node: the one that the agent unpacked, or that of the job file."""
    return os.environ.get(variables.CODE) or job.code


def load_object(spec: str, kind: str) -> Any:
    """Import `pkg.module:name`.

    Raises:
        JobError: the import fails; names the line of the user's file.
        OSError: a file or a server that the module needs cannot be read now.
    """
    module_name, _, attribute = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and not isinstance(error, _OF_FILES):
            raise  # of the storage or the network: another start may help
        raise JobError(_import_failure(spec, kind, error)) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        found = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))[:8])
        raise JobError(
            f"{kind}: {spec} names {attribute!r}, which {module.__file__} does not have.\nIt has: {found}."
        ) from None


def _import_failure(spec: str, kind: str, error: BaseException) -> str:
    code = str(Path.cwd())
    report = report_of(error, code)
    where = str(report.frames[0]) if report.frames else f"`code`, the folder {code}"
    what = f"{report.name}: {shortened(report.message, lines=3, characters=600)}"
    return f"{kind}: {spec} does not import: {what}\nAt {where}."


def check_task(spec: str) -> type[Task]:
    """The Task class that a job names.

    Raises:
        JobError: it does not import or is not a subclass of clustertrain.Task.
    """
    from clustertrain.training.task import Task

    cls = load_object(spec, "task")
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise JobError(
            f"task: {spec} is {cls!r}, not a subclass of clustertrain.Task.\n"
            "Derive the class from clustertrain.Task, or name a function with its own loop as `function:`."
        )
    return cls


def check_code(job: Job) -> None:
    """Import the task or function that the job names, or find its script; calls none of it.

    Raises:
        JobError: it is missing or does not import; names the line.
    """
    if job.task:
        check_task(job.task)
    elif job.function:
        check_function(job.function)
    elif not (Path(code := code_folder(job)) / (job.script or "")).is_file():
        raise JobError(f"script: {job.script} does not exist in {code}.\nThe path is relative to `code`.")


def check_function(spec: str) -> Callable[[dict[str, Any]], object]:
    """The function that a job names.

    Raises:
        JobError: it does not import, or cannot be called with one argument.
    """
    function: Callable[[dict[str, Any]], object] = load_object(spec, "function")
    if not callable(function):
        raise JobError(
            f"function: {spec} is {function!r}, which cannot be called.\n"
            "Name a function that takes one argument, args."
        )
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        raise JobError(
            f"function: {spec} cannot be called with one argument: {error}.\n"
            "Name a function that takes one argument, args."
        ) from None
    except ValueError:  # it is written in C, and has no signature
        pass
    return function


def make_task(cls: type[Task], job: Job) -> Task:
    """The Task with the job's args.

    Raises:
        JobError: its __init__ does not take them.
    """
    args = dict(job.args) if isinstance(job.args, dict) else {}
    try:
        return cls(**args)
    except TypeError as error:
        raise JobError(
            f"args: {job.task} does not take {sorted(args)}: {error}\n"
            "Use the names of the parameters of its __init__."
        ) from error
