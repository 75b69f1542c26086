"""Reads a file of manifests as kubectl does.

Documents and lists (`kind: List`) become one sequence of objects. Scalars have the types that Go's YAML gives
them: `y` and `off` are booleans, `1e9` and `1_000` are numbers, a date and `12:30` are text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from clustertrain.errors import JobError
from clustertrain.launchers.kubernetes.render.manifests import Manifest

LARGEST_FILE_BYTES = 64 * 2**20
_MOST_VALUES = 5_000_000
_DEEPEST_LEVEL = 200
_HAS_API_VERSION = re.compile(r"""^(- |\{)?\s*["']?apiVersion["']?\s*:""", re.MULTILINE)
_LoaderOfLibrary: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast


class _GoLoader(_LoaderOfLibrary):  # type: ignore[misc, valid-type]
    """YAML 1.1 as Go's library reads it, which kubectl uses."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  as in PyYAML


def _resolve(tag: str, pattern: str, first: str) -> None:
    _GoLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), list(first))


_resolve("null", "~|null|Null|NULL|", "~nN\0")
_GoLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"\Z"), [""])
_resolve(
    "bool",
    "y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
    "yYnNtTfFoO",
)
_resolve("int", r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[1-9][0-9_]*|0)", "-+0123456789")
_resolve(
    "float",
    r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+.0123456789",
)
_resolve("merge", "<<", "<")
_GoLoader.add_constructor(
    "tag:yaml.org,2002:bool",
    lambda loader, node: loader.construct_scalar(node)[:2].lower() in ("y", "ye", "tr", "on"),
)
_GoLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))


def manifests_in(path: Path) -> list[Manifest] | None:
    """The objects of a file of manifests; None if it is something else, such as a job file.

    Raises:
        JobError: it is a file of manifests, and cannot be read.
    """
    text = _text_of(path)
    if text is None or not _HAS_API_VERSION.search(text):
        return None
    try:
        documents = [each for each in yaml.load_all(text, _GoLoader) if each is not None]
    except (yaml.YAMLError, ValueError) as error:
        raise JobError(f"{path}: is not YAML: {_where_and_what(error)}\nCorrect it.") from None
    if not any(isinstance(each, dict) and "apiVersion" in each for each in documents):
        return None
    size = _Size(path)
    return [each for document in documents for each in _objects_of(size.plain(document))]


def _text_of(path: Path) -> str | None:
    """The text; None for what the reader of job files refuses with its own message."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    if len(raw) > LARGEST_FILE_BYTES:
        limit = LARGEST_FILE_BYTES // 2**20
        raise JobError(f"{path}: is larger than {limit} MiB.\nSplit the file, and check each part.")
    return text


def _where_and_what(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"


def _objects_of(value: Any) -> Iterator[Manifest]:
    """The items of a list, as kubectl sends them one by one; another object as it is."""
    if isinstance(value, dict) and str(value.get("kind", "")).endswith("List"):
        items = value.get("items")
        if isinstance(items, list):
            for each in items:
                yield from _objects_of(each)
            return
    yield value


class _Size:
    """Turns YAML into JSON's values, and counts them: aliases can make a short text very large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values = 0

    def plain(self, value: Any, level: int = 0) -> Any:
        self._values += 1
        if self._values > _MOST_VALUES or level > _DEEPEST_LEVEL:
            raise JobError(
                f"{self._path}: has more than {_MOST_VALUES} values or {_DEEPEST_LEVEL} levels, aliases "
                "included.\nSplit the file, or write fewer aliases."
            )
        if isinstance(value, dict):
            return {_key(key): self.plain(inner, level + 1) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.plain(inner, level + 1) for inner in value]
        if isinstance(value, float) and not math.isfinite(value):
            raise JobError(f"{self._path}: contains {value}, which JSON does not have.\nWrite it in quotes.")
        if value is None or isinstance(value, str | int | float):
            return value
        kind = type(value).__name__
        raise JobError(f"{self._path}: contains a YAML {kind}, which JSON does not have.\nTake its tag out.")


def _key(key: Any) -> str:
    """A key as JSON has it: always text."""
    return {True: "true", False: "false", None: "null"}[key] if isinstance(key, bool | None) else str(key)
