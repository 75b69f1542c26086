"""The job's `args` against the parameters of a task: every name is known, and none is missing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from clustertrain.errors import JobError
from clustertrain.units import shortened

EMPTY = inspect.Parameter.empty


def check_args(cls: type[Any], args: Mapping[str, Any], where: str) -> None:
    """Check that a class takes these arguments. `where`: `FILE:LINE` of its `__init__`.

    Raises:
        JobError: a name is unknown or missing.
    """
    signature = inspect.signature(cls)
    try:
        signature.bind(**args)
    except TypeError as error:
        names = ", ".join(signature.parameters) or "no arguments"
        raise JobError(f"args: {cls.__name__}: {error}.\nIt takes: {names}.\nAt {where}.") from None


def unknown_text(owner: str, name: str, names: Sequence[str]) -> str:
    """What is wrong with an argument whose name is not among those that `owner` takes."""
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"{owner} does not take '{shortened(name)}'{hint}"


def signature_of(target: Any) -> inspect.Signature | None:
    """The parameters of a class or function, or None for one of C that does not show them."""
    try:
        return inspect.signature(target)
    except (ValueError, TypeError):
        return None
