"""YAML as plain data, with the position of every key and every value.

Only what a job file needs: no tags, no merge keys, a bounded size. Other text is refused with JobError at its
line and column. ruamel.yaml keeps positions as well, but these refusals would take as much code on top of it;
pydantic names keys and has no line numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import yaml

from clustertrain.errors import JobError
from clustertrain.node.regular_file import open_file
from clustertrain.node.units import shortened

LARGEST_FILE_BYTES = 2**20
MOST_VALUES = 20_000

Keys = tuple[str | int, ...]


# "text": exactly as written, whatever type YAML would give it; "any": the type is not checked later, so
# ambiguous values are refused; "typed": a model checks the type and formats the error.
Expected = Literal["text", "any", "typed"]


class TextPosition(NamedTuple):
    """The position in the text where a key or a value was written."""

    order: tuple[int, int]
    label: str


@dataclass
class Document:
    """Plain data and, for every path of keys, the positions of the key and of the value."""

    data: Any
    positions: dict[Keys, tuple[TextPosition, TextPosition]] = field(default_factory=dict)

    def nearest(self, keys: Sequence[str | int]) -> Keys:
        """Return the path in the document along these keys, without those that are only in the model."""
        path: Keys = ()
        for key in keys:
            if (*path, key) in self.positions:
                path = (*path, key)
        return path


class JobLoader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, except that `1e-4` is a number, as in YAML 1.2."""

    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse tags, and stop before a text with very many values has taken a minute."""
        event, problem = self.peek_event(), ""  # type: ignore[no-untyped-call]
        self.nodes += 1
        if self.nodes > MOST_VALUES:
            problem = f"more than {MOST_VALUES} values"
        elif tag := getattr(event, "tag", None):
            problem = f"the tag {shortened(tag.replace('tag:yaml.org,2002:', '!!'))}"
        if problem:
            raise yaml.composer.ComposerError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


class JobDumper(yaml.SafeDumper):
    """Writes YAML that JobLoader reads back unchanged."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Use double quotes for text with line breaks: other styles fold U+0085 and similar into a space."""
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


JobDumper.add_representer(str, _text_node)

for _side in (JobLoader, JobDumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+\Z", re.ASCII),
        list("-+.0123456789"),
    )


def refuse(position: TextPosition, what: str, *lines: str) -> NoReturn:
    raise JobError("\n".join([f"{position.label}: {what}", *lines]))


def text_of(path: Path) -> str:
    """Return the text of a file of at most 1 MiB.

    Raises:
        JobError: it does not exist, is not readable, too large, or not UTF-8.
    """
    try:
        with open_file(path) as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        remedy = "name another job file, or create one with: clustertrain init"
        raise JobError(f"{path}: cannot be read: {error.strerror}\n{remedy}") from None
    if len(raw) > LARGEST_FILE_BYTES:
        raise JobError(
            f"{path}: is larger than 1 MiB\na job file is a short YAML text: is this the right file?"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JobError(f"{path}: {error}\nsave the job file as UTF-8 text") from None


class Reader:
    """One YAML text, read once into a Document."""

    def __init__(
        self, text: str, position: Callable[[int, int], TextPosition], expected_at: Callable[[Keys], Expected]
    ) -> None:
        """Prepare to read `text`.

        Args:
            position: returns the TextPosition of a line and a column, counted from 1.
            expected_at: returns the kind of value that a path may have.
        """
        self.text = text
        self.position = position
        self.expected_at = expected_at
        self.count = 0
        self.positions: dict[Keys, tuple[TextPosition, TextPosition]] = {}

    def document(self, base: Keys) -> Document:
        """Return the data, with the positions of everything below the path `base`."""
        here = self.position(1, 1)
        try:
            self.loader = JobLoader(self.text)
            node = self.loader.get_single_node()
            start = self._at(node.start_mark) if node is not None else here
            self.positions[base] = (start if base else here, start)
            return Document(None if node is None else self._plain(node, base), self.positions)
        except RecursionError:
            refuse(here, "is nested too deep", "put large data in a separate file")
        except yaml.MarkedYAMLError as error:
            remedy = "check the lines above it too; within [ ] and { } a text with ${…} needs quotes"
            refuse(self._at(error.problem_mark), str(error.problem), remedy)
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # an escape such as "\UFFFFFFFF"
            refuse(here, f"not YAML: {shortened(str(error))}", "a job file is printable text")

    def _at(self, mark: Any) -> TextPosition:
        return self.position(mark.line + 1, mark.column + 1) if mark else self.position(1, 1)

    def _plain(self, node: yaml.Node, path: Keys) -> Any:
        self.count += 1
        if self.count > MOST_VALUES:  # aliases can repeat a value many times
            refuse(self._at(node.start_mark), f"more than {MOST_VALUES} values", "remove the aliases")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            values = []
            for index, item in enumerate(node.value):
                self.positions[*path, index] = (self._at(item.start_mark),) * 2
                values.append(self._plain(item, (*path, index)))
            return values
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Keys) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here, key = self._at(key_node.start_mark), key_node.value
            if not key_node.tag.endswith(":str"):
                refuse(
                    here, f"YAML does not read the key {shortened(str(key))} as text", "write it in quotes"
                )
            if key in mapping:
                first = self.positions[*path, key][0]
                what = f"the key '{shortened(key)}' is given twice"
                refuse(here, what, f"the first one is at {first.label}: remove one")
            self.positions[*path, key] = (here, self._at(value_node.start_mark))
            mapping[key] = self._plain(value_node, (*path, key))
        return mapping

    def _scalar(self, node: yaml.Node, path: Keys) -> Any:
        kind, expected, written = node.tag.rpartition(":")[2], self.expected_at(path), node.value
        if kind == "null":
            return None
        # YAML 1.1 reads 1:30:00 in base 60; the type of the key decides instead.
        if expected == "text" or kind not in ("bool", "int", "float") or ":" in written:
            return written
        if kind == "bool" and expected == "any" and written.lower() not in ("true", "false"):
            what = f"{written} is a boolean in YAML 1.1 and text in YAML 1.2"
            refuse(self._at(node.start_mark), what, "write true or false, or put it in quotes if it is text")
        try:
            return self.loader.construct_object(node)
        except ValueError:  # such as 0x_, or too many digits for Python
            what = f"{shortened(written)} is no number"
            refuse(self._at(node.start_mark), what, "write it in quotes if it is text")
