"""Error messages for job files: the place, the value, the rule, the nearest valid key."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from clustertrain.errors import JobError
from clustertrain.job.identity import as_json
from clustertrain.job.launcher_plugins import launcher_sections, problems
from clustertrain.job.model import sections
from clustertrain.job.sections import Section
from clustertrain.job.values import Refused
from clustertrain.job.yaml_reader import (
    Document,
    Keys,
    TextPosition,
)
from clustertrain.node.units import shortened

_ONE_LETTER = 0.85  # the likeness of `step` and `steps`

SectionT = TypeVar("SectionT", bound=Section)


def validated(document: Document, model: type[SectionT]) -> SectionT:
    """Validate the document with this model.

    Raises:
        JobError: the first problem in the text, with its place, the rule and the remedy.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A key that is missing may be there with a mistake in its name.
        problems = sorted((detail["type"] == "missing", *_problem(document, detail)) for detail in details)
        _, position, text = problems[0]
        what, *lines = text.split("\n")
        more = f" (the first of {len(problems)} problems)" if len(problems) > 1 else ""
        raise JobError("\n".join([f"{position.label}: {what}{more}", *lines])) from None


def _problem(document: Document, error: ErrorDetails) -> tuple[TextPosition, str]:
    """Return the place and the message of one error of the model."""
    kind, loc, cause = error["type"], error["loc"], error.get("ctx", {}).get("error")
    if isinstance(cause, Refused):
        path = document.nearest((*loc, *cause.at))
        return document.positions[path][0], _within(path, str(cause))
    path = document.nearest(loc)
    key_position, value_position = document.positions[path]
    if kind == "extra_forbidden":
        return key_position, _unknown_key(path)
    if kind == "missing":
        return key_position, _within(path, f"the key '{loc[-1]}' is missing\nit has no default: add it")
    if loc[-1] == "[key]":
        name, section = shortened(str(path[-1])), dotted(path[:-1])
        return key_position, f"{section}: '{name}' is not a valid name\n{_rule(error, path)}"
    return value_position, f"{dotted(path)}: {shown(error['input'])} is not accepted\n{_rule(error, path)}"


def _unknown_key(path: Keys) -> str:
    if len(path) == 1 and (problem := problems().get(str(path[0]))):
        return f"unknown key '{path[0]}'\n{problem}"
    valid = _keys_of(path[:-1])
    near = get_close_matches(str(path[-1]), valid, n=1)
    homes = [known for known, _ in sections() if path[-1] in _keys_of(known)]
    if homes and not get_close_matches(str(path[-1]), valid, cutoff=_ONE_LETTER):
        where = "" if homes[0] else " at the top level"
        hint = f"did you mean '{dotted((*homes[0], path[-1]))}'{where}?"
    else:
        hint = f"did you mean '{near[0]}'?" if near else f"the keys here are {', '.join(valid)}"
        if len(path) == 1 and not near:
            hint += f"\nor the section of a launcher: {', '.join(launcher_sections())} are installed here"
    return _within(path[:-1], f"unknown key '{shortened(str(path[-1]))}'\n{hint}")


def _rule(error: ErrorDetails, path: Keys) -> str:
    """Return the rule that a value breaks, in the words of its type, and how to write the value."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    rule = str(context["error"]) if "error" in context else re.sub(r"^\w+ should", "must", error["msg"])
    if kind == "string_type" and isinstance(value, bool):
        rule += ", and YAML reads on, yes, off and no as true and false\nwrite it in quotes"
    elif kind == "string_type" and isinstance(value, int | float):
        rule += f'\nwrite it in quotes: "{value}"'
    elif kind == "tuple_type" and isinstance(value, str | int | float):
        rule += f"\nwrite it in brackets: [{shortened(as_json(value))}]"
    elif kind == "literal_error":
        near = get_close_matches(str(value), re.findall(r"'([^']*)'", context["expected"]), n=1)
        rule += f"\ndid you mean '{near[0]}'?" if near else ""
    elif kind in ("model_type", "dict_type"):
        keys = _keys_of(path)
        rule += f" with keys such as {', '.join(keys)}" if keys else ""
        rule += ", or for script and module a list: [--lr, 0.1]" if path == ("args",) else ""
    return rule


def _keys_of(path: Keys) -> list[str]:
    """Return the valid keys of the section at this path."""
    for known, model in sections():
        if len(known) == len(path) and all(want in ("*", key) for want, key in zip(known, path, strict=True)):
            return [info.alias or name for name, info in model.model_fields.items()]
    return []


def _within(path: Keys, text: str) -> str:
    return f"{dotted(path)}: {text}" if path else text


def dotted(path: Keys) -> str:
    return shortened(".".join(str(key) for key in path))


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return shortened(repr(value) if isinstance(value, str) else as_json(value))
