"""Makes the reference of docs/json.md from the classes that `--json` prints, and from the kinds of events.

python -m clustertrain.cli.json_reference docs/json.md      replaces what follows the heading "Reference"
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, fields
from inspect import getdoc
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import Field, create_model

from clustertrain.cli.data import DataState
from clustertrain.drill.report import Report
from clustertrain.explain.explanation import Explanation
from clustertrain.job.reference import write_reference
from clustertrain.launchers.check import Checked
from clustertrain.observe.as_json import JSON_VERSION
from clustertrain.observe.checkpoints import Checkpoint
from clustertrain.observe.run_table import PRINTED, RunRow
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run.streams.events import KINDS


@dataclass(frozen=True)
class Output:
    """What a command prints with `--json`: a `kind`, or an array of them; if given, only these `names`."""

    kind: type
    is_array: bool = False
    names: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the output. Every field is always printed, and later versions may add some."""
        hints, meanings = get_type_hints(self.kind), _meanings(self.kind)
        names = self.names or tuple(each.name for each in fields(self.kind))
        model = create_model(
            "Printed",
            **{name: (hints[name], Field(description=meanings[name])) for name in names},  # type: ignore[call-overload]
            format_version=(Literal[JSON_VERSION], Field(description="the version of this format.")),
        )
        schema = _without("title", model.model_json_schema(mode="serialization"))
        definitions = schema.pop("$defs", {})
        whole = {"type": "array", "items": schema} if self.is_array else schema
        return {**whole, "$defs": definitions} if definitions else whole


OUTPUTS = {
    "status": Output(StoredStatus),
    "ls": Output(RunRow, is_array=True, names=PRINTED),
    "ckpt ls": Output(Checkpoint, is_array=True),
    "data ls": Output(DataState, is_array=True),
    "check": Output(Checked),
    "drill": Output(Report),
    "explain": Output(Explanation),
}


def json_markdown() -> str:
    """A section for each command, and the table of the kinds of records that `logs` prints."""
    return "\n".join([*(_section(command, output) for command, output in OUTPUTS.items()), _kinds()])


def _section(command: str, output: Output) -> str:
    schema = output.schema()
    what = "An array of objects." if output.is_array else "An object."
    rows = [
        f"| `{name}` | {_type(value, schema.get('$defs', {}))} | {value['description']} |"
        for name, value in schema.get("items", schema)["properties"].items()
    ]
    table = ["| field | type | meaning |", "|---|---|---|", *rows]
    block = ["```json", *_lines(schema), "```"]
    return "\n".join([f"### `{command} --json`", "", f"{what} Its JSON schema:", "", *block, "", *table, ""])


def _lines(schema: dict[str, Any]) -> list[str]:
    """The schema as JSON with a line for each field, and without the descriptions, which the table has."""
    schema = _without("description", schema)
    of_fields = schema.get("items", schema)["properties"]
    fields_text = json.dumps(of_fields)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in of_fields.items())
    return json.dumps(schema).replace(fields_text, f"{{\n{lines}\n}}").splitlines()


def _kinds() -> str:
    rows = [
        f"| `{name}` | {kind.meaning} | {', '.join(f'`{each}`' for each in kind.fields.split(', '))} |"
        for name, kind in KINDS.items()
    ]
    return "\n".join(["### `logs --json`", "", "| kind | meaning | fields |", "|---|---|---|", *rows, ""])


def _type(value: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The type of a field as a reader of JSON knows it."""
    if "anyOf" in value:
        return " or ".join(_type(each, definitions) for each in value["anyOf"])
    if "$ref" in value:
        names = definitions[value["$ref"].rpartition("/")[2]]["properties"]
        return f"object: {', '.join(f'`{name}`' for name in names)}"
    if value.get("type") == "array":
        inner = value["items"] if "items" in value else value["prefixItems"][0]
        return f"array of {_type(inner, definitions)}"
    return f"`{value['const']}`" if "const" in value else str(value["type"])


def _meanings(kind: type) -> dict[str, str]:
    """The fields by the section "Attributes" of a docstring; several names may share a text."""
    section = (getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w[\w, ]*): (.*(?:\n     .*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for names, text in found for name in names.split(", ")}


def _without(key: str, schema: Any) -> Any:
    """The schema without this key, at any depth; such as the titles that pydantic makes of the names."""
    if isinstance(schema, dict):
        return {name: _without(key, value) for name, value in schema.items() if name != key}
    return [_without(key, each) for each in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]), json_markdown())
