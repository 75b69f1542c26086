"""`kubernetes.patches`: changes of the rendered RayJob.

A mapping is a strategic merge patch, a list is a JSON patch (RFC 6902).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, JsonValue, Tag

from clustertrain.job.values import Refused

_OPERATIONS = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": ("value",),
}
MOST_OPERATIONS = 100
_EXAMPLE = "for example {op: replace, path: /spec/ttlSecondsAfterFinished, value: 60}"


def _json_patch(value: Any) -> Any:
    """The operations of RFC 6902, with their members. Whether a path exists is known when it is applied."""
    if len(value) > MOST_OPERATIONS:
        raise Refused(f"{len(value)} operations\na JSON patch has at most {MOST_OPERATIONS}")
    for index, operation in enumerate(value):
        if problem := _problem(operation):
            raise Refused(f"{problem}\n{_EXAMPLE}", index)
    return value


def _problem(operation: Any) -> str | None:
    if not isinstance(operation, dict):
        return "an operation of a JSON patch is a mapping with op and path"
    name = operation.get("op")
    if name not in _OPERATIONS:
        return f"op is {name!r}, and must be one of {', '.join(_OPERATIONS)}"
    expected = ("path", *_OPERATIONS[name])
    if missing := [key for key in expected if key not in operation]:
        return f"op is {name}, and {' and '.join(missing)} is missing"
    if unknown := [str(key) for key in operation if key not in ("op", *expected)]:
        return f"op is {name}, and has no key {' and no key '.join(unknown)}"
    for key in ("path", "from"):
        pointer = operation.get(key, "")
        if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
            return f"{key} is {pointer!r}, and must be a JSON pointer: it begins with /"
    return None


def _kind(value: object) -> str:
    return "list" if isinstance(value, list | tuple) else "mapping"


Operations = Annotated[
    tuple[dict[str, JsonValue], ...],
    BeforeValidator(_json_patch, json_schema_input_type=list[dict[str, JsonValue]]),
]
Patches = Annotated[
    Annotated[dict[str, JsonValue], Tag("mapping")] | Annotated[Operations, Tag("list")], Discriminator(_kind)
]
