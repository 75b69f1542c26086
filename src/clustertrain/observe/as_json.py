"""The output of every `--json`: values of the models as one line of ASCII."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_json


def as_json(value: Any) -> str:
    """A record, or a frozen class with its fields. A number that is not finite is null, as JSON has none."""
    return json.dumps(json.loads(to_json(value, inf_nan_mode="null")))


def json_line(text: str) -> str:
    """The object of a line of `logs --json` that is no record."""
    return as_json({"line": text})
