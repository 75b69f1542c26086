"""The docstrings of the fields of a section, for its schema and its reference.

They are read from the source when somebody asks: pydantic would read them at each start of a command.
"""

from __future__ import annotations

import ast
import inspect
from contextlib import suppress
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any


@cache
def docstrings_of(section: type) -> dict[str, str]:
    """Return the text under each field by the field's name, also of the fields of base classes."""
    found: dict[str, str] = {}
    for each in reversed(section.__mro__):
        if each.__module__.partition(".")[0] not in ("builtins", "pydantic"):
            with suppress(OSError):  # a class without source, such as one of create_model
                found |= _own(dedent(inspect.getsource(each)))
    return found


def describe(schema: dict[str, Any], section: type) -> None:
    """Add the docstrings to the schema of a section: pydantic's `json_schema_extra`."""
    texts = docstrings_of(section)
    for name, field in section.model_fields.items():  # type: ignore[attr-defined]  # it is a model
        value = schema["properties"].get(field.alias or name)
        if value is not None and name in texts:
            value["description"] = texts[name]


def _own(source: str) -> dict[str, str]:
    (definition,) = ast.parse(source).body
    return {
        field.target.id: inspect.cleandoc(str(text.value.value))
        for field, text in pairwise(definition.body)  # type: ignore[attr-defined]  # it is a class
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
