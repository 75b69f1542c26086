"""Make docs/reference/job-file.md from the models, so that it cannot differ from what is accepted.

    python -m clustertrain.job.reference docs/reference/job-file.md

replaces what follows the heading "Reference".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from clustertrain.job.file import job_schema
from clustertrain.job.model import sections
from clustertrain.job.sections import Section
from clustertrain.node.units import duration_text, size_value

MARK = "## Reference\n"
"""The heading that the keys follow in docs/reference/job-file.md."""


def reference_markdown() -> str:
    """Return the sections of the job file, with a heading for each key."""
    schema = job_schema()
    definitions = schema["$defs"]
    texts = (_section(path, model, definitions.get(model.__name__, schema)) for path, model in sections())
    return "\n".join(texts)


def write_reference(page: Path, reference: str) -> None:
    """Replace the part of a page that follows its heading "Reference"."""
    prose, mark, _ = page.read_text("utf-8").partition(MARK)
    page.write_text(f"{prose}{mark}\n{reference}", "utf-8")


def _section(path: tuple[str, ...], model: type[Section], schema: dict[str, Any]) -> str:
    title = f"`{_dotted(path)}`" if path else "The top level"
    lines = [f"### {title}", "", " ".join((model.__doc__ or "").split()), ""]
    anchors = {_anchor(each) for each, _ in sections()}
    inner = []  # keys that are sections, whose headings have these anchors
    for name, info in model.model_fields.items():
        key = (*path, info.alias or name)
        value = schema["properties"][key[-1]]
        meaning = " ".join((value.get("description") or info.description or "").split())
        kind = "; ".join(filter(None, (_kind(value, key), _default(value, info))))
        if _anchor(key) in anchors:
            inner.append(f"- `{key[-1]}`: {kind}. {meaning}")
        else:
            lines += [f"#### `{_dotted(key)}`", "", kind, "", meaning, ""]
    return "\n".join([*lines, *inner, ""] if inner else lines)


def _kind(value: dict[str, Any], path: tuple[str, ...]) -> str:
    """Return the type of a value as a user would describe it."""
    if "x-kind" in value:
        return str(value["x-kind"])
    if "$ref" in value:
        is_any = value["$ref"].endswith("/JsonValue")
        return "anything" if is_any else f"mapping, see [`{_dotted(path)}`](#{_anchor(path)})"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "type" in value:
        return _kind_of_type(value, path)
    choices = [choice for choice in value.get("anyOf") or value["oneOf"] if choice.get("type") != "null"]
    return ", or ".join(_kind(choice, path) for choice in choices)


def _kind_of_type(value: dict[str, Any], path: tuple[str, ...]) -> str:
    match value["type"]:
        case "array":
            return "[min, max]" if "prefixItems" in value else f"list of {_kind(value['items'], path)}"
        case "object":
            patterns = value.get("patternProperties") or {"": value["additionalProperties"]}
            inner = _kind(next(iter(patterns.values())), (*path, "*"))
            return f"mapping of {inner.replace('mapping,', 'names,')}"
        case "integer":
            return f"whole number, at least {value['minimum']}"
    return {"number": "number", "boolean": "true or false", "string": "text"}[value["type"]] + (
        ", more than 0" if "exclusiveMinimum" in value else ", at least 0" if "minimum" in value else ""
    )


def _default(value: dict[str, Any], info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    text = _default_text(value, info)
    return f"default `{text}`" if text else ""


def _default_text(value: dict[str, Any], info: FieldInfo) -> str:
    default = value.get("default")
    as_text = {"duration": duration_text, "size": size_value}.get(value.get("x-kind", ""))
    if as_text is not None and default is not None:
        return str(as_text(default))
    if isinstance(info.default, Section):  # its own part lists its defaults, except for its required key
        given = info.default.model_dump(by_alias=True, exclude_defaults=True)
        return ", ".join(f"{key}: {inner}" for key, inner in given.items())
    if isinstance(default, list) and len(default) == 1:  # as one of several
        return str(default[0])
    if isinstance(default, float):
        return f"{default:g}"
    return "" if default is None else default if isinstance(default, str) else json.dumps(default)


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path)


def _anchor(path: tuple[str, ...]) -> str:
    """Return the anchor that GitHub makes of the section's heading."""
    return "".join(character for character in _dotted(path) if character.isalnum() or character in "-_")


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]), reference_markdown())
