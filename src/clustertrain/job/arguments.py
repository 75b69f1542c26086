"""The job's `args` against the parameters of a task: every name is known, none is missing, and each value
fits a simple annotation.

The parameters come from the imported class (worker/check.py) or from the text of its file (source.py). An
annotation that is not simple accepts every value.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
import types
import typing
from collections import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from clustertrain.errors import JobError
from clustertrain.job.identity import as_json
from clustertrain.units import shortened

EMPTY = inspect.Parameter.empty
_OF_YAML = {str: "text", bool: "true or false", int: "an integer", float: "a number", list: "a list"}
_SEQUENCES = (list, tuple, abc.Sequence, abc.Iterable, abc.Collection)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
# The names that an annotation in the text of a file may have here; any other name makes it not simple.
_SIMPLE = {
    **{simple.__name__: simple for simple in (int, float, str, bool, list, dict, tuple, object)},
    **{name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union")},
    **{name: getattr(typing, name) for name in ("List", "Dict", "Tuple")},
    **{name: getattr(abc, name) for name in ("Sequence", "Mapping", "Iterable")},
    "Path": pathlib.Path,
    "pathlib": pathlib,
    "typing": typing,
}
_SIMPLE_NODES = (
    ast.Expression,
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.BinOp,
    ast.BitOr,
    ast.UnaryOp,
    ast.USub,
    ast.Load,
)


@dataclass(frozen=True)
class Parameter:
    """A parameter that can be passed by name."""

    name: str
    annotation: Any = EMPTY  # a type, the text of one, or EMPTY
    default: Any = EMPTY  # EMPTY: it has to be given; None: it is None; ...: another default

    @property
    def is_required(self) -> bool:
        return self.default is EMPTY

    @property
    def type_text(self) -> str:
        if self.annotation is EMPTY:
            return ""
        text = self.annotation if isinstance(self.annotation, str) else _text_of(self.annotation)
        return shortened(text)

    def __str__(self) -> str:
        return f"{self.name} ({self.type_text})" if self.type_text else self.name


@dataclass(frozen=True)
class Parameters:
    """What the `__init__` of a task takes.

    Attributes:
        owner: the name of the class.
        where: `FILE:LINE` of the definition.
        by_name: the parameters that can be passed by name, without self.
        takes_any: it has **kwargs, so every name is accepted.
    """

    owner: str
    where: str
    by_name: Sequence[Parameter]
    takes_any: bool = False

    def check(self, args: Mapping[str, Any]) -> None:
        """
        Raises:
            JobError: a name is unknown or missing, or a value does not fit; names the definition's place.
        """
        problems = [*self._unknown(args), *self._missing(args), *self._unfit(args)]
        if problems:
            more = f" (the first of {len(problems)} problems)" if len(problems) > 1 else ""
            what, remedy = problems[0]
            raise JobError(f"args: {what}{more}\n{remedy}\nAt {self.where}.")

    def _unknown(self, args: Mapping[str, Any]) -> list[tuple[str, str]]:
        names = [parameter.name for parameter in self.by_name]
        takes = f"It takes: {', '.join(map(str, self.by_name))}." if names else "It takes no arguments."
        unknown = [] if self.takes_any else [name for name in args if name not in names]
        return [(unknown_text(self.owner, name, names), takes) for name in unknown]

    def _missing(self, args: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [
            (f"{self.owner} needs {parameter}, which is missing.", f"Add it: args: {{{parameter.name}: …}}")
            for parameter in self.by_name
            if parameter.is_required and parameter.name not in args
        ]

    def _unfit(self, args: Mapping[str, Any]) -> list[tuple[str, str]]:
        unfit = [each for each in self.by_name if each.name in args and not _accepts(each, args[each.name])]
        return [
            (
                f"{each.name} is {_with_kind(args[each.name])}, "
                f"but {self.owner} declares {each.name}: {each.type_text}.",
                "Change the value, or the annotation.",
            )
            for each in unfit
        ]


def unknown_text(owner: str, name: str, names: Sequence[str]) -> str:
    """What is wrong with an argument whose name is not among those that `owner` takes."""
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"{owner} does not take '{shortened(name)}'{hint}"


def _accepts(parameter: Parameter, value: Any) -> bool:
    if value is None and parameter.default is None:
        return True  # `width: int = None` is common
    annotation = parameter.annotation
    return fits(value, annotation_of(annotation) if isinstance(annotation, str) else annotation)


def annotation_of(text: str) -> Any:
    """The type that an annotation names, if it is simple; EMPTY otherwise."""
    try:
        tree = ast.parse(text, mode="eval")
        if not all(isinstance(node, _SIMPLE_NODES) for node in ast.walk(tree)):
            return EMPTY
        # It has only names from _SIMPLE, attributes and subscripts of them, and no calls.
        return eval(compile(tree, "<annotation>", "eval"), {"__builtins__": {}}, dict(_SIMPLE))
    except (SyntaxError, NameError, AttributeError, TypeError, ValueError):
        return EMPTY


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value of a job file fits an annotation; True for an annotation that is not simple.

    An integer fits float, text fits Path, a list fits a tuple.
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if origin is typing.Annotated:
        return fits(value, inner[0])
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    plain = origin or annotation
    if plain in _SEQUENCES and isinstance(value, list):
        return _items_fit(value, plain, inner)
    if plain in _MAPPINGS and isinstance(value, dict):
        values = inner[1] if len(inner) == 2 else EMPTY
        return all(fits(each, values) for each in value.values())
    return _fits_plain(value, plain)


def _fits_plain(value: Any, plain: Any) -> bool:
    if plain in (None, types.NoneType):
        return value is None
    if plain is bool:
        return isinstance(value, bool)
    if plain in (int, float):
        wanted = int if plain is int else (int, float)
        return isinstance(value, wanted) and not isinstance(value, bool)
    if plain is str or (isinstance(plain, type) and issubclass(plain, pathlib.PurePath)):
        return isinstance(value, str)
    if plain in _SEQUENCES:
        return isinstance(value, str) and plain not in (list, tuple)
    return plain not in _MAPPINGS


def _items_fit(value: list[Any], plain: Any, inner: tuple[Any, ...]) -> bool:
    if plain is tuple and inner and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(fits, value, inner))
    return all(fits(each, inner[0]) for each in value) if inner else True


def _with_kind(value: Any) -> str:
    kind = "no value" if value is None else _OF_YAML.get(type(value), "a mapping")
    return f"{shortened(as_json(value))} ({kind})"


def _text_of(annotation: Any) -> str:
    return inspect.formatannotation(annotation).replace("typing.", "").replace("pathlib.", "")
