"""References that stay text in every record of a job, because their values are known only where it runs.

${CLUSTERTRAIN_DATA_TRAIN} and the like, in `args`, `resume_args` and `env`: only the worker has the values,
because it stages the data. So a run has the same identity on every machine. Any other ${…} of `args` is the
script's own, and passes through.

${NAME} in `env`: the process that starts the driver has the values, which may be secrets.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping

from clustertrain.errors import JobError
from clustertrain.job.values import Refused
from clustertrain.node import variables

_REFERENCE = re.compile(rf"\$\{{({variables.PREFIX}[^}}]*)(\}}?)")
_NESTED = re.compile(r"\$\{(\w+):-[^}]*\{")
VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^${}]*))?\})?")
"""A `$$`, a `${NAME}` or `${NAME:-default}`, or a `$` that is none of these."""


def data_variable(name: str) -> str:
    """Return the name of the variable with the path of a data set."""
    return f"{variables.DATA_PREFIX}{name.upper()}"


def check_references(text: str, data: Iterable[str], entry_point: str, *, is_script: bool) -> None:
    """Check that a text refers only to variables that the workers of this job have.

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
            raise Refused(
                f"unknown variable '${{{name}}}'\n"
                f"the variables of a worker of this {entry_point} are {', '.join(valid)}"
            )


def check_dollars(text: str) -> None:
    """Check each '$' in a value in which ${NAME} is replaced.

    Raises:
        Refused: the value has a '$' that starts no reference, or a brace in a default.
    """
    if nested := _NESTED.search(text):
        raise Refused(
            f"{text!r} has a brace in the default of ${{{nested[1]}:-…}}\n"
            "a default is plain text, and ends at the first '}'"
        )
    if any(match[0] == "$" for match in VARIABLE.finditer(text)):
        raise Refused("a '$' that does not start ${NAME} or ${NAME:-default}\nwrite $$ for a '$'")


def names_of(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without which these texts have no value, each with a key that refers to it."""
    return {
        match[1]: key
        for key, text in texts.items()
        for match in VARIABLE.finditer(text)
        if match[1] and match[2] is None and not match[1].startswith(variables.PREFIX)
    }


def referred_names(texts: Mapping[str, str]) -> list[str]:
    """Return the variables that these texts refer to, also those that have a default."""
    found = [match[1] for text in texts.values() for match in VARIABLE.finditer(text) if match[1]]
    return [name for name in dict.fromkeys(found) if not name.startswith(variables.PREFIX)]


def with_values(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with the values of its ${NAME}, and with $ for $$.

    References to a worker's variables stay.

    Raises:
        JobError: a variable is not set, and the reference has no default.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name is None:
            return "$"
        if name.startswith(variables.PREFIX):
            return match[0]
        return environ.get(name) or default or ""

    check_set({f"env.{key}": text for key, text in env.items()}, environ)
    return {key: VARIABLE.sub(value, text) for key, text in env.items()}


def check_set(texts: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Check that each variable that these texts refer to is set or has a default.

    Args:
        texts: by their keys in the job file, such as `env.KEY`.

    Raises:
        JobError: a variable is not set, and the reference has no default.
    """
    for name, key in names_of(texts).items():
        if name not in environ:
            raise JobError(
                f"{key}: needs the environment variable {name}, which is not set on {socket.gethostname()}\n"
                f"set it where the job starts, or give a default: ${{{name}:-default}}",
                tuple(key.split(".", 1)),
            )


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return the text with the values in place of the references to their variables."""
    return _REFERENCE.sub(lambda reference: values.get(_as_variable(reference[1]), reference[0]), text)


def without_references(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have their value before the data is staged."""
    return {name: value for name, value in env.items() if not _REFERENCE.search(value)}


def _as_variable(name: str) -> str:
    """Return the variable's name in capitals if it is of a data set, which may be written in lowercase."""
    return name.upper() if name.startswith(variables.DATA_PREFIX) else name
