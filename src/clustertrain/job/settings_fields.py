"""The fields of a section that are settings of the training loop: training/settings.py defines them once.

`class Ddp(Section, settings.Ddp)` has the fields of that dataclass, with its defaults and docstrings. Their
values are checked as the values of any other section.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import Field, StrictBool
from pydantic.fields import FieldInfo

from clustertrain.job.values import Count, CountOrZero, Positive, PositiveOrZero, Text
from clustertrain.training import settings

# The type in a job file for a type of the settings: those here, and the sections that were made of settings.
_CHECKED: dict[Any, Any] = {
    bool: StrictBool,
    settings.Count: Count,
    settings.CountOrZero: CountOrZero,
    settings.Positive: Positive,
    settings.PositiveOrZero: PositiveOrZero,
    settings.Text: Text,
}


def add_fields(section: type, of: type[Any]) -> None:
    """Declare the fields of the dataclass `of` in a section, before pydantic reads them.

    A type that the section itself gives is kept.
    """
    types_of = get_type_hints(of, include_extras=True)
    section.__doc__ = section.__doc__ or of.__doc__
    for field in fields(of):
        section.__annotations__.setdefault(field.name, _checked(types_of[field.name]))
        setattr(section, field.name, _with_default(field.default))
    _CHECKED[of] = section


def _checked(kind: Any) -> Any:
    if kind in _CHECKED:
        return _CHECKED[kind]
    if get_origin(kind) in (Union, types.UnionType):
        return Union[tuple(map(_checked, get_args(kind)))]  # noqa: UP007  of a tuple of types
    if get_origin(kind) is tuple:
        return tuple[tuple(map(_checked, get_args(kind)))]  # type: ignore[misc]  # computed
    return kind


def _with_default(default: Any) -> FieldInfo:
    if is_dataclass(default):
        default = _CHECKED[type(default)](**vars(default))
    given: FieldInfo = Field() if default is MISSING else Field(default)
    return given
