"""The output of every `--json`: values of the models as one line of ASCII."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_json

JSON_VERSION = 1
"""A change of the meaning of a field raises it."""


def as_json(value: Any) -> str:
    """A record, or a frozen class with its fields, or a list of such. Each of these objects gets the
    `format_version`. A number that is not finite is null, as JSON has none."""
    plain = json.loads(to_json(value, inf_nan_mode="null"))
    for each in plain if isinstance(plain, list) else [plain]:
        each["format_version"] = JSON_VERSION
    return json.dumps(plain)


def json_line(text: str) -> str:
    """The object of a line of `logs --json` that is no record."""
    return as_json({"line": text})
