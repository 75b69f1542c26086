"""The types of the rules in this folder: a field of a manifest, and a finding. See check.py.

A Field is a value in a manifest with the path to it. No input makes it raise an error: a missing key, or a
value of another type than the rule expects, reads as empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clustertrain.units import shortened

# What refuses the manifest. "api": the API server. "pods", "pod-security": the API server, but only for the
# pods that the operator creates later. "nobody": the manifest is accepted, and does not work as intended.
By = Literal["api", "operator", "pods", "pod-security", "kueue", "kai", "nobody"]


LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Finding:
    """A mistake in a manifest.

    `where` and `message` form one sentence. A finding with `since` is a note, not a refusal: operators before
    that version do not have the field.
    """

    where: str
    message: str
    remedy: str
    since: str | None = None
    by: By = "operator"


@dataclass(frozen=True)
class Field:
    """A value in a manifest. `what` is the object's kind and name, `path` leads to the value in it."""

    what: str
    path: str
    value: Any

    def at(self, *keys: str) -> Field:
        """The field at these keys below this one; its value is None if it does not exist."""
        field = self
        for key in keys:
            inner = field.value.get(key) if isinstance(field.value, Mapping) else None
            field = Field(self.what, _joined(field.path, key), inner)
        return field

    def along(self, path: Iterable[str | int]) -> Field:
        """The field at a path whose numbers are positions in lists."""
        field = self
        for step in path:
            field = field.items()[step] if isinstance(step, int) else field.at(step)
        return field

    def items(self) -> list[Field]:
        """The items of a list."""
        values = self.value if isinstance(self.value, list) else []
        return [Field(self.what, f"{self.path}[{number}]", value) for number, value in enumerate(values)]

    def entries(self) -> dict[str, Field]:
        """The entries of a mapping by key; a key that is not text is converted to text."""
        values = self.value if isinstance(self.value, Mapping) else {}
        return {
            str(key): Field(self.what, _joined(self.path, str(key)), value) for key, value in values.items()
        }

    @property
    def is_set(self) -> bool:
        """Whether the field is set; Kubernetes treats null as not set."""
        return self.value is not None

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else ""

    @property
    def number(self) -> int | None:
        is_whole = isinstance(self.value, int) and not isinstance(self.value, bool)
        return int(self.value) if is_whole else None

    @property
    def is_true(self) -> bool:
        return self.value is True

    @property
    def shown(self) -> str:
        """The value as error messages show it."""
        if isinstance(self.value, Mapping):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        if self.value is None or isinstance(self.value, bool):
            return {None: "null", True: "true", False: "false"}[self.value]
        return shortened(f"'{self.value}'" if isinstance(self.value, str) else str(self.value))

    def finding(self, message: str, remedy: str, by: By = "operator", since: str | None = None) -> Finding:
        return Finding(f"{self.what}: {self.path}" if self.path else self.what, message, remedy, since, by)


def texts(field: Field, by: By = "api") -> Iterator[Finding]:
    """The values of a mapping must be text; YAML reads 1, 1.10, yes and on as something else."""
    for entry in field.entries().values():
        if entry.is_set and not isinstance(entry.value, str):
            yield entry.finding(f"is {entry.shown}, and must be text", "Write it in quotes.", by)


def text_items(field: Field, by: By = "api") -> Iterator[Finding]:
    """The same for the items of a list, null included."""
    for item in field.items():
        if not isinstance(item.value, str):
            yield item.finding(f"is {item.shown}, and must be text", "Write it in quotes.", by)


def too_large(field: Field) -> Finding:
    """A finding: a whole number that Go cannot read as int32. CRDs are not checked for this."""
    message = f"is {field.shown}, and must be at most {LARGEST_INT32}: the operator cannot read it"
    return field.finding(message, "Change it: the operator then reads no other RayJob either.")


def duplicates(fields: list[Field], key: str) -> Iterator[tuple[Field, str]]:
    """The fields whose value of `key` repeats that of an earlier field, each with that value."""
    seen: set[str] = set()
    for field in fields:
        name = field.at(key).text
        if name and name in seen:
            yield field.at(key), name
        seen.add(name)


def _joined(path: str, key: str) -> str:
    if not re.fullmatch(r"[\w-]+", key):
        return f'{path}["{shortened(key)}"]'
    return f"{path}.{key}" if path else key
