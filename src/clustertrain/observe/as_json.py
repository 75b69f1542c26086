"""The output of every `--json`: values of the models as one line of ASCII."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from pydantic_core import to_json

from clustertrain.storage.record_file import T, typed

JSON_VERSION = 1
"""A change of the meaning of a field raises it."""


def as_json(value: Any) -> str:
    """Return an object, or a list of objects, as one line of JSON.

    An object is a record, or a frozen class with its fields; each gets the `format_version`. A number that is
    not finite is null, because JSON has no such number.
    """
    plain = json.loads(to_json(value, inf_nan_mode="null"))
    for each in plain if isinstance(plain, list) else [plain]:
        each["format_version"] = JSON_VERSION
    return json.dumps(plain)


def last_printed(kind: type[T], printed: str) -> T | None:
    """Return the record in the last line that is one, or None.

    Such a line begins with the first field of `kind`; a library that the command uses may print other lines.
    """
    begins = f'{{"{fields(kind)[0].name}":'
    found = (line for line in reversed(printed.splitlines()) if line.startswith(begins))
    line = next(found, None)
    return None if line is None else typed(kind, json.loads(line))


def json_line(text: str) -> str:
    """Return the object of a line of `logs --json` that is not a record."""
    return as_json({"line": text})
