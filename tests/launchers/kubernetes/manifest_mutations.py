"""One wrong value in each field of a manifest: of another type, empty, missing, or outside of every rule."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

Manifest = dict[str, Any]
Path = tuple[str | int, ...]

_REMOVED = object()


def mutations(manifest: Manifest) -> Iterator[tuple[str, Manifest]]:
    """The manifest with one change each, and the change as text. In lists the first and last items change."""
    for path, value in _fields(manifest):
        for wrong in _wrong(value):
            made = deepcopy(manifest)
            parent: Any = made
            for step in path[:-1]:
                parent = parent[step]
            if wrong is _REMOVED:
                del parent[path[-1]]
            else:
                parent[path[-1]] = deepcopy(wrong)
            yield f"{_text(path)} = {'(removed)' if wrong is _REMOVED else repr(wrong)[:60]}", made


def _wrong(value: object) -> list[object]:
    if isinstance(value, bool):
        return ["yes", 1, [], _REMOVED]
    if isinstance(value, int):
        return ["x", -1, 1.5, 10**10, [], _REMOVED]
    if isinstance(value, str):
        return [1, True, "", "A b!", [], {}, _REMOVED]
    if isinstance(value, list):
        return ["x", {}, [], [None], [1], [*value, value[0]] if value else [{}], _REMOVED]
    return ["x", [], {}, {**value, "zzz": "x"} if isinstance(value, dict) else {}, _REMOVED]


def _fields(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _fields(inner, (*path, key))
    elif isinstance(value, list):
        for number in sorted({0, len(value) - 1} if value else ()):
            yield from _fields(value[number], (*path, number))


def _text(path: Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
