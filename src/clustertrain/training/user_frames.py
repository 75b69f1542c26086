"""Which frames of a traceback are the user's: the one decision for all messages that give a line of code."""

from __future__ import annotations

import inspect
import os
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

SourceLine = tuple[str, int, str]
"""A frame as Python gives it: file name, line, function."""

_OWN_CODE = str(Path(__file__).resolve().parents[1])
_STANDARD_LIBRARY = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")
_FRAMEWORKS = ("torch", "ray", "clustertrain")
OWN, LIBRARY, FRAMEWORK = range(3)


def source_lines_of(origin: int, places: Iterable[SourceLine], code: str) -> list[SourceLine]:
    """Return the places of this origin, the innermost first; one that recurs in a row is given once.

    Args:
        origin: OWN, the user's code; LIBRARY, other installed packages; FRAMEWORK, that is Python, torch,
            ray and clustertrain.
        places: the outermost first.
        code: the folder of the user's code.
    """
    found: list[SourceLine] = []
    for place in places:
        if _origin(place[0], code) == origin and found[-1:] != [place]:
            found.append(place)
    return found[::-1]


def defined_at(*things: Any) -> str:
    """Return `FILE:LINE` of the first of these classes and functions that is in a file.

    The `__init__` of a dataclass, for example, is not.
    """
    for thing in map(inspect.unwrap, things):
        with suppress(OSError, TypeError):
            return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    return f"the module {getattr(things[-1], '__module__', '?')}"


def short_path(path: str, code: str) -> str:
    """Return the shortest name of a file: relative to `code`, or to the folder of installed packages."""
    path = str(Path(code, path))
    return _own_part(path, code) or "/".join(_installed_parts(path)) or path


def _origin(path: str, code: str) -> int:
    if path.startswith("<"):  # compiled from a string, as torch.compile does, or part of Python
        return FRAMEWORK
    path = str(Path(code, path))
    installed = _installed_parts(path)
    if _below(path, _OWN_CODE) is not None or (installed and installed[0].removesuffix(".py") in _FRAMEWORKS):
        return FRAMEWORK
    if _own_part(path, code) is not None:
        return OWN  # also if the user's code is itself installed
    if installed:
        return LIBRARY
    if any(_below(path, folder) is not None for folder in _STANDARD_LIBRARY):
        return FRAMEWORK
    return OWN


def _own_part(path: str, code: str) -> str | None:
    """Return the path relative to `code`, or None if it is not below it, or in an environment there."""
    relative = _below(path, code)
    is_own = relative is not None and not set(_INSTALLED) & set(Path(relative).parts)
    return relative if is_own else None


def _installed_parts(path: str) -> tuple[str, ...]:
    """Return the parts of a path below the folder of installed packages, or none if it is not below one."""
    parts = Path(path).parts
    last = max((n for n, part in enumerate(parts) if part in _INSTALLED), default=None)
    return () if last is None else parts[last + 1 :]


def _below(path: str, folder: str) -> str | None:
    """Return the path relative to a folder that contains it, links resolved, or None if it does not."""
    real, top = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return str(real.relative_to(top)) if top in real.parents else None
