"""Write the fields of each `--json` into docs/reference/json.md, from the docstrings of their classes.

python docs/site/json_fields.py docs/reference/json.md
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from clustertrain.cli.data import DataState
from clustertrain.cli.drill.compare import Difference
from clustertrain.cli.drill.report import FaultOutcome, Report
from clustertrain.launchers.check import Checked
from clustertrain.observe.checkpoints import SavedCheckpoint
from clustertrain.observe.explain.explanation import Explanation
from clustertrain.observe.explain.stacks import RanksAtPlace
from clustertrain.observe.run_table import RunRow
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run_files.records.result import BestCheckpoint

OUTPUTS: dict[str, tuple[str, type, set[str]]] = {
    "status --json": ("", StoredStatus, set()),
    "ls --json": ("An array of objects.", RunRow, {"job_yaml", "run"}),
    "ckpt ls --json": ("An array of objects.", SavedCheckpoint, set()),
    "best": ("In `ckpt ls --json`.", BestCheckpoint, set()),
    "data ls --json": ("An array of objects.", DataState, set()),
    "check --json": ("", Checked, set()),
    "drill --json": ("", Report, set()),
    "outcomes": ("In `drill --json`.", FaultOutcome, set()),
    "differences": ("In `outcomes`.", Difference, set()),
    "explain --json": ("", Explanation, set()),
    "stacks": ("In `explain --json`.", RanksAtPlace, set()),
}
"""How it is printed, unless as one object, its class, and the attributes that are not printed."""
BEGIN, END = (
    "<!-- fields: python docs/site/json_fields.py docs/reference/json.md -->\n",
    "<!-- end of fields -->\n",
)
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def fields_markdown() -> str:
    """Return a heading for each object, and a line for each of its fields."""
    return "\n".join(line for name in OUTPUTS for line in _object(name, *OUTPUTS[name])) + "\n"


def _object(name: str, shape: str, kind: type, hidden: set[str]) -> Iterator[str]:
    yield f"\n### `{name}`\n" + (f"\n{shape}\n" if shape else "")
    types = get_type_hints(kind)
    for fields, text in attributes_of(kind):
        shown = [field for field in fields if field not in hidden]
        if shown:
            names = ", ".join(f"`{field}` ({_type(types[field])})" for field in shown)
            yield f"- {names}: {text}"


def attributes_of(kind: type) -> list[tuple[list[str], str]]:
    """Return the names and the text of each entry of the section `Attributes` of a class's docstring."""
    section = inspect.getdoc(kind).partition("Attributes:\n")[2].partition("\n\n")[0]  # type: ignore[union-attr]
    entries = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {8,}.*)*)", section, re.MULTILINE)
    return [(names.split(", "), " ".join(text.split())) for names, text in entries]


def _type(hint: Any) -> str:
    if isinstance(hint, UnionType):
        (given,) = set(get_args(hint)) - {NoneType}
        return f"{_type(given)}?"
    origin = get_origin(hint) or hint
    return _TYPES.get(origin) or ("array" if issubclass(origin, tuple | list) else "object")


if __name__ == "__main__":
    page = Path(sys.argv[1])
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    page.write_text(before + BEGIN + fields_markdown() + END + rest.partition(END)[2], "utf-8")
