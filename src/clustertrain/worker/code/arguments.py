"""The job's `args` against the parameters of a task: every name is known, none is missing, and each value
fits a simple annotation. Any other annotation accepts every value.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections import abc
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from clustertrain.errors import JobError
from clustertrain.job.identity import as_json
from clustertrain.units import shortened

EMPTY = inspect.Parameter.empty
_OF_YAML = {str: "text", bool: "true or false", int: "an integer", float: "a number", list: "a list"}
# The simple types, and what a job file has for each: an integer fits float, text fits Path, a list a tuple.
_FITTING: tuple[tuple[Any, type | tuple[type, ...]], ...] = (
    *((same, same) for same in (bool, int, str, list, dict, types.NoneType)),
    *((None, types.NoneType), (float, (int, float)), (Path, str), (tuple, list), (abc.Mapping, dict)),
    *((kind, (list, str)) for kind in (abc.Sequence, abc.Iterable, abc.Collection)),
)


def check_args(cls: type[Any], args: Mapping[str, Any], where: str) -> None:
    """Check that a class takes these arguments. `where`: `FILE:LINE` of its `__init__`.

    Raises:
        JobError: a name is unknown or missing, or a value does not fit.
    """
    owner, parameters = cls.__name__, inspect.signature(cls).parameters.values()
    by_name = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    named = {each.name: each.replace(annotation=_evaluated(each.annotation, cls)) for each in by_name}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    takes = f"It takes: {', '.join(map(_shown, named.values()))}." if named else "It takes no arguments."
    problems = [
        (unknown_text(owner, name, list(named)), takes)
        for name in args
        if name not in named and not takes_any
    ]
    problems += [
        (f"{owner} needs {_shown(each)}, which is missing.", f"Add it: args: {{{name}: …}}")
        for name, each in named.items()
        if each.default is EMPTY and name not in args
    ]
    problems += [
        (
            f"{name} is {_with_kind(args[name])}, but {owner} declares {name}: {_type_text(each)}.",
            "Change the value, or the annotation.",
        )
        for name, each in named.items()
        if name in args and not _accepts(each, args[name])
    ]
    if problems:
        more = f" (the first of {len(problems)} problems)" if len(problems) > 1 else ""
        what, remedy = problems[0]
        raise JobError(f"args: {what}{more}\n{remedy}\nAt {where}.")


def unknown_text(owner: str, name: str, names: Sequence[str]) -> str:
    """What is wrong with an argument whose name is not among those that `owner` takes."""
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"{owner} does not take '{shortened(name)}'{hint}"


def signature_of(target: Any) -> inspect.Signature | None:
    """The parameters of a class or function, or None for one of C that does not show them."""
    try:
        return inspect.signature(target)
    except (ValueError, TypeError):
        return None


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value of a job file fits an annotation; every value fits one that is not simple."""
    origin, inner = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    fitting = next((kinds for simple, kinds in _FITTING if simple is origin), object)
    if not isinstance(value, fitting) or (isinstance(value, bool) and fitting not in (bool, object)):
        return False
    if fitting is object or not inner or not isinstance(value, list | dict):
        return True
    if origin is tuple and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(fits, value, inner))
    items = value.values() if isinstance(value, dict) else value
    return all(fits(each, inner[-1] if isinstance(value, dict) else inner[0]) for each in items)


def _accepts(parameter: inspect.Parameter, value: Any) -> bool:
    is_default = value is None and parameter.default is None  # `width: int = None` is common
    return is_default or fits(value, parameter.annotation)


def _evaluated(annotation: Any, cls: type[Any]) -> Any:
    """The type that an annotation in quotes means; the text itself if it cannot be evaluated."""
    try:
        names = getattr(inspect.unwrap(cls.__init__), "__globals__", {})
        return eval(annotation, dict(names)) if isinstance(annotation, str) else annotation
    except Exception:  # noqa: BLE001  an annotation may be any expression
        return annotation


def _shown(parameter: inspect.Parameter) -> str:
    text = _type_text(parameter)
    return f"{parameter.name} ({text})" if text else parameter.name


def _type_text(parameter: inspect.Parameter) -> str:
    if parameter.annotation is EMPTY:
        return ""
    text = inspect.formatannotation(parameter.annotation).replace("typing.", "").replace("pathlib.", "")
    return shortened(text.strip("'"))


def _with_kind(value: Any) -> str:
    kind = "no value" if value is None else _OF_YAML.get(type(value), "a mapping")
    return f"{shortened(as_json(value))} ({kind})"
