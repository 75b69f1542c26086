"""References to variables of a worker in `args`, `resume_args` and `env`, such as ${CLUSTERTRAIN_DATA_TRAIN}.

Only the worker has the values, because it stages the data. Until then the text stays as it is, so that a run
has the same identity on every machine. Any other ${…} is the script's own, and passes through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from clustertrain import variables
from clustertrain.job.values import Refused

_REFERENCE = re.compile(rf"\$\{{({variables.PREFIX}[^}}]*)(\}}?)")


def data_variable(name: str) -> str:
    """The variable with the path of a data set."""
    return f"{variables.DATA_PREFIX}{name.upper()}"


def check_references(text: str, data: Iterable[str], entry_point: str, *, is_script: bool) -> None:
    """
    Args:
        data: the names of the job's data sets.

    Raises:
        Refused: the text refers to a variable that the workers of this job do not have.
    """
    of_scripts = [variables.CHECKPOINT_DIR] if is_script else []
    valid = [*map(data_variable, data), *of_scripts, variables.ATTEMPT, variables.RESTART]
    for name, end in _REFERENCE.findall(text):
        if not end:
            raise Refused(f"'${{{name}' has no closing brace\nwrite ${{{variables.PREFIX}…}}")
        if _as_variable(name) not in valid:
            suffixes = {each.removeprefix(variables.PREFIX): each for each in valid}
            near = get_close_matches(name.removeprefix(variables.PREFIX).upper(), suffixes, n=1, cutoff=0.5)
            hint = f"did you mean '${{{suffixes[near[0]]}}}'?\n" if near else ""
            raise Refused(
                f"unknown variable '${{{name}}}'\n{hint}"
                f"the variables of a worker of this {entry_point} are {', '.join(valid)}"
            )


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with the values in place of the references. `values`: of each variable that it refers to."""
    return _REFERENCE.sub(lambda reference: values[_as_variable(reference[1])], text)


def without_references(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that have their value before the data is staged."""
    return {name: value for name, value in env.items() if not _REFERENCE.search(value)}


def _as_variable(name: str) -> str:
    """A data set may be written as under `data`: in lowercase."""
    return name.upper() if name.startswith(variables.DATA_PREFIX) else name
