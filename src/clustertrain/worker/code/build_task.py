"""Creates the task of a job with its `args`, and with the loss and the metrics that the job file names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.job.model import Job
from clustertrain.job.train import Part
from clustertrain.training.user_frames import defined_at
from clustertrain.units import shortened
from clustertrain.worker.code.arguments import EMPTY, signature_of, unknown_text
from clustertrain.worker.code.error_report import first_lines
from clustertrain.worker.code.user_code import OF_FILES, args_of, load_object, place_of

if TYPE_CHECKING:
    from clustertrain.training.task import Task

Keys = tuple[str, ...]


def make_task(cls: type[Task], job: Job) -> Task:
    """The Task with the job's args, and with the loss and the metrics of the job file. Its Shards read S3 and
    the web. Before its __init__ the random states are those of the seed, on every rank and at every start.

    Raises:
        JobError: its __init__ raises an exception, or `bind_parts` refuses the others.
        Exception: from __init__, of the network, the storage, the memory or a GPU.
    """
    from clustertrain.training.data.shards import set_opener  # torch takes time to import
    from clustertrain.training.ranks.rng import seed_all
    from clustertrain.training.task_errors import OF_THE_MACHINE, said
    from clustertrain.worker.data.shard_source import ShardOpener

    set_opener(ShardOpener(job.storage.location))
    args = args_of(cls, job)
    seed_all(job.train.seed if job.train is not None else 0, rank=0)
    try:
        task = cls(**args)
    except (ClusterTrainError, *OF_THE_MACHINE):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and not isinstance(error, OF_FILES):
            raise
        raise JobError(
            f"task: {job.task} with args {sorted(args)} raised {said(error)}\nAt {place_of(error)}."
        ) from error
    bind_parts(task, job)
    return task


def bind_parts(task: Task, job: Job) -> None:
    """Give the loss and the metrics of the job file to the task.

    Raises:
        JobError: one of them does not exist or does not take its arguments; the task has a method of its own.
    """
    if job.train is None:
        return
    made = {}
    for keys, part in job.train.parts:
        _refuse_own_method(task, keys[1], keys[:2])
        made[keys] = _created(part, keys)
    # Through object: a task may be a frozen dataclass.
    if (criterion := made.pop(("train", "loss"), None)) is not None:
        _check_criterion(criterion, job.train.loss)
        object.__setattr__(task, "criterion", criterion)
    if made:
        object.__setattr__(task, "named_metrics", {keys[-1]: metric for keys, metric in made.items()})


def _refuse_own_method(task: Task, method: str, keys: Keys) -> None:
    from clustertrain.training.task import Task

    own = getattr(type(task), method)
    if own is not getattr(Task, method):
        raise JobError(
            f"{'.'.join(keys)} is given, and {type(task).__name__} has its own method {method}.\n"
            f"The key would have no effect: remove it, or the method at {defined_at(own)}.",
            keys,
        )


def _created(part: Part, keys: Keys) -> Any:
    """The object of a class, or the function with its arguments."""
    what = ".".join(keys)
    try:
        target = load_object(part.class_, what)
    except JobError as error:
        error.at = (*keys, "class")
        raise
    if not callable(target):
        raise JobError(
            f"{what}: {part.class_} is {shortened(repr(target))}, which cannot be called.\n"
            "Name a class, or a function of (outputs, targets).",
            (*keys, "class"),
        )
    _check_names(target, part, keys)
    try:
        if isinstance(target, type):
            return target(**part.args)
        made = partial(target, **part.args)
        if (signature := signature_of(made)) is not None:
            signature.bind(None, None)  # (outputs, targets)
        return made
    except Exception as error:  # what a constructor raises about its arguments
        said = first_lines(f"{type(error).__name__}: {error}", lines=3, characters=600)
        raise JobError(
            f"{what}: {part.class_} does not take these args: {said}\n{_takes(target)}", (*keys, "args")
        ) from error


def _check_names(target: Any, part: Part, keys: Keys) -> None:
    parameters = signature.parameters.values() if (signature := signature_of(target)) else None
    if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    names = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY]
    for name in part.args:
        if name not in names:
            what = f"{'.'.join(keys)}: {unknown_text(part.class_, name, names)}"
            raise JobError(f"{what}\n{_takes(target)}", (*keys, "args", name))


def _takes(target: Any) -> str:
    if (signature := signature_of(target)) is None:
        return "Compare them with its documentation."
    parameters = [each.replace(annotation=EMPTY) for each in signature.parameters.values()]
    return f"It takes: {', '.join(shortened(str(each)) for each in parameters) or 'no arguments'}."


def _check_criterion(criterion: Any, part: Part | None) -> None:
    """
    Raises:
        JobError: it is not a function of (outputs, targets), or it would have to be trained.
    """
    name = part.class_ if part is not None else ""
    if not callable(criterion):
        raise JobError(
            f"train.loss: an object of {name} cannot be called.\n"
            "Name a class of torch.nn, such as torch.nn.MSELoss, or a function of (outputs, targets).",
            ("train", "loss", "class"),
        )
    parameters = getattr(criterion, "parameters", None)
    if parameters is not None and any(each.requires_grad for each in parameters()):
        raise JobError(
            f"train.loss: {name} has parameters of its own, which would not be trained.\n"
            "Make it a part of the model, and write the method loss of your Task.",
            ("train", "loss", "class"),
        )
