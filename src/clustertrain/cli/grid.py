"""`--grid`: the points of a sweep, each a run with a name of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.job.file import load_job, sets_of
from clustertrain.job.identity import with_option
from clustertrain.job.model import Job
from clustertrain.job.values import as_name

_ARG = "args."


def points_of(job_file: str, sets: tuple[str, ...], grid: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the `--set` options of each point, the last key fastest.

    Without a grid, these are the options of the command.

    Args:
        grid: the options, such as `lr=0.1,0.01`: a key as for `--set`, or the name of an arg; of a script
            `--lr` in its `args`.

    Raises:
        JobError: the job file or an option is wrong, or two points would have one name.
    """
    if not grid:
        return [sets]
    job, axes = load_job(Path(job_file), sets), []
    for option in grid:
        key, separator, values = option.partition("=")
        if key == "name":
            raise JobError("--grid name=…: the name of each point follows from its values.\nOmit it.")
        if not separator or not all(value.strip() for value in values.split(",")):
            raise JobError(f"--grid {option} is not KEY=VALUE,VALUE.\nWrite --grid lr=0.1,0.01, for example.")
        key = key if "." in key or key in Job.model_fields else f"{_ARG}{key}"
        axes.append([(key, value.strip()) for value in values.split(",")])
    points: dict[str, tuple[str, ...]] = {}
    for point in itertools.product(*axes):
        name = as_name("-".join([job.name, *(value for _, value in point)]))  # 0.003 is 0-003
        if name in points:
            raise JobError(f"--grid: two points have the name {name}.\nLeave one of their values out.")
        points[name] = (*sets, *_sets_of(job, point), f"name={name}")
    return list(points.values())


def _sets_of(job: Job, point: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the `--set` options of a point.

    The arguments of a script are a list: an arg is an option in it.
    """
    args, is_changed = job.args, False
    for key, value in point:
        if isinstance(args, dict) or not key.startswith(_ARG):
            yield f"{key}={value}"
        else:
            args, is_changed = with_option(args, key.removeprefix(_ARG), value), True
    if is_changed:
        yield from sets_of({"args": [*args]})
