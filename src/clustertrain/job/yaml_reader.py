"""YAML as plain data, with the position of every key and every value.

Only what a job file needs: no tags, no merge keys, no dates, a bounded size. Other text is refused with
JobError at its line and column. ruamel.yaml keeps positions as well, but these refusals would take as much
code on top of it; pydantic names keys and has no line numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import yaml

from clustertrain.errors import JobError
from clustertrain.regular_file import NotAFile, open_file
from clustertrain.units import LARGEST_INTEGER, shortened

LARGEST_FILE_BYTES = 2**20
DEEPEST_LEVEL = 40
MOST_VALUES = 20_000
LONGEST_NUMBER = 500
_HIDDEN_BREAK = re.compile(r"[\x85\u2028\u2029]|\r(?!\n)")

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
        """The path in the document along these keys, without those that are only in the model."""
        path: Keys = ()
        for key in keys:
            if (*path, key) in self.positions:
                path = (*path, key)
        return path


class JobLoader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, except that `1e-4` is a number, as in YAML 1.2."""


class JobDumper(yaml.SafeDumper):
    """Writes YAML that JobLoader reads back unchanged."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Uses double quotes for text with line breaks: other styles fold U+0085 and similar into a space."""
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
    """The text of a file of at most 1 MiB.

    Raises:
        JobError: it does not exist, is not readable, too large, or not UTF-8.
    """
    try:
        with open_file(path) as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        what = f"{path}: there is no such file"
        raise JobError(f"{what}\nname another job file, or create one with: clustertrain init") from None
    except IsADirectoryError:
        raise JobError(f"{path}: is a folder\nname the job file in it, such as {path / 'job.yaml'}") from None
    except NotAFile:
        raise JobError(f"{path}: is not a regular file\nwrite the job into a file") from None
    except OSError as error:
        raise JobError(f"{path}: cannot be read: {error.strerror}\ncheck its permissions") from None
    if len(raw) > LARGEST_FILE_BYTES:
        raise JobError(
            f"{path}: is larger than 1 MiB\na job file is a short YAML text: is this the right file?"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise JobError(f"{path}:{line}:{column}: {what}\nsave the job file as UTF-8 text") from None


class Reader:
    """One YAML text, read once into a Document."""

    def __init__(
        self, text: str, position: Callable[[int, int], TextPosition], expected_at: Callable[[Keys], Expected]
    ) -> None:
        """`position` returns the TextPosition of a line and a column, counted from 1; `expected_at` returns
        the kind of value that a path may have."""
        self.text = text
        self.position = position
        self.expected_at = expected_at
        self.count = 0
        self.positions: dict[Keys, tuple[TextPosition, TextPosition]] = {}

    def document(self, base: Keys) -> Document:
        """The data, with the positions of what is below the path `base`."""
        self._check_breaks()
        try:
            self._check_size()
            self.loader = JobLoader(self.text)
            node = self.loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            refuse(self._at(error.problem_mark), f"not YAML: {error.problem}", self._remedy(error))
        except yaml.reader.ReaderError as error:
            here = self._at_index(error.position)
            refuse(here, f"not YAML: the character {error.character!r}", "a job file is printable text")
        except (
            ValueError,
            OverflowError,
        ) as error:  # an escape such as "\UFFFFFFFF", which PyYAML lets through
            refuse(self.position(1, 1), f"not YAML: {error}", "a backslash in double quotes starts an escape")
        start = self.position(1, 1) if node is None or not base else self._at(node.start_mark)
        self.positions[base] = (start, start if node is None else self._at(node.start_mark))
        return Document(None if node is None else self._plain(node, base), self.positions)

    def _remedy(self, error: yaml.MarkedYAMLError) -> str:
        if "'\\t'" in (error.problem or ""):
            return "indent with spaces, not tabs"
        at = error.problem_mark.index if error.problem_mark else 0
        if self.text[max(0, at - 1) : at + 1] == "${":
            return "within [ ] and { } a text with ${…} needs quotes"
        return "check the lines above it too"

    def _at(self, mark: Any) -> TextPosition:
        return self.position(mark.line + 1, mark.column + 1) if mark else self.position(1, 1)

    def _at_index(self, index: int) -> TextPosition:
        before = self.text[:index]
        return self.position(before.count("\n") + 1, index - before.rfind("\n"))

    def _check_breaks(self) -> None:
        """Refuses what ends a line for YAML and not in an editor: in a comment it would hide a key."""
        if found := _HIDDEN_BREAK.search(self.text):
            what = f"the character {found[0]!r} is a line break in YAML, and in most editors it is none"
            refuse(
                self._at_index(found.start()), what, "remove it, or write it as an escape in double quotes"
            )

    def _check_size(self) -> None:
        """Refuses tags, and checks depth and size before any recursion."""
        depth = count = 0
        for event in yaml.parse(self.text, JobLoader):
            count += isinstance(event, yaml.NodeEvent)  # a value, or a key
            if count > MOST_VALUES:
                self._too_much(event.start_mark, f"more than {MOST_VALUES} values")
            if tag := getattr(event, "tag", None):
                what = f"the tag {shortened(tag.replace('tag:yaml.org,2002:', '!!'))}"
                refuse(self._at(event.start_mark), what, "a job file is plain data: remove the tag")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST_LEVEL:
                self._too_much(event.start_mark, f"nested more than {DEEPEST_LEVEL} levels deep")

    def _too_much(self, mark: Any, what: str) -> NoReturn:
        refuse(self._at(mark), what, "a job file is a short text: put large data in a separate file")

    def _plain(self, node: yaml.Node, path: Keys) -> Any:
        self.count += 1
        if self.count > MOST_VALUES:  # aliases can repeat a value many times
            self._too_much(node.start_mark, f"more than {MOST_VALUES} values")
        if len(path) > DEEPEST_LEVEL:
            self._too_much(node.start_mark, f"nested more than {DEEPEST_LEVEL} levels deep")
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
            here = self._at(key_node.start_mark)
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                refuse(here, "a key is a list or a mapping", "a key must be text")
            if key_node.tag == "tag:yaml.org,2002:merge":
                refuse(here, "the merge key <<", "merge keys are not allowed: write the keys out")
            if not key_node.tag.endswith(":str"):
                refuse(here, f"YAML does not read the key {shortened(key)} as text", "write it in quotes")
            self._check_text(key_node)
            if key in mapping:
                first = self.positions[*path, key][0]
                what = f"the key '{shortened(key)}' is given twice"
                refuse(here, what, f"the first one is at {first.label}: remove one")
            self.positions[*path, key] = (here, self._at(value_node.start_mark))
            mapping[key] = self._plain(value_node, (*path, key))
        return mapping

    def _scalar(self, node: yaml.Node, path: Keys) -> Any:
        kind = node.tag.rpartition(":")[2]
        expected = self.expected_at(path)
        if kind in ("int", "float") and len(node.value) > LONGEST_NUMBER:
            what = f"{shortened(node.value)} is a number of {len(node.value)} characters"
            rule = f"a number has at most {LONGEST_NUMBER} characters: write it in quotes if it is text"
            refuse(self._at(node.start_mark), what, rule)
        if kind not in ("null", "bool", "int", "float", "timestamp") or (
            kind != "null" and expected == "text"
        ):
            return self._check_text(node)
        here, written = self._at(node.start_mark), shortened(node.value)
        if kind == "timestamp":
            refuse(here, f"YAML reads {written} as a date", "write it in quotes if it is text")
        if kind in ("int", "float") and ":" in node.value:
            return node.value  # YAML 1.1 reads 1:30:00 in base 60; the type of the key decides instead
        if kind == "int" and re.fullmatch(r"[-+]?0[0-7_]+", node.value):
            what = f"{written} is octal in YAML 1.1 and decimal in YAML 1.2"
            refuse(here, what, "write it without the leading 0, or in quotes if it is text")
        if kind == "bool" and expected == "any" and node.value.lower() not in ("true", "false"):
            what = f"{written} is a boolean in YAML 1.1 and text in YAML 1.2"
            refuse(here, what, "write true or false, or put it in quotes if it is text")
        try:
            value = self.loader.construct_object(node)
        except ValueError:
            value = LARGEST_INTEGER + 1  # such as 0x_, or too many digits for Python to read
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            refuse(here, f"{written} does not fit into 64 bits", "write it in quotes if it is text")
        return value

    def _check_text(self, node: yaml.Node) -> str:
        text: str = node.value
        if any("\ud800" <= character <= "\udfff" for character in text):
            refuse(
                self._at(node.start_mark), "a lone surrogate (half a character)", "write the whole character"
            )
        return text
