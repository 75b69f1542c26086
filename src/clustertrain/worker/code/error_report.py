"""A report of an exception, small enough for a message: its text, the user's frames and its causes.

It is plain data: an exception of the user's code may not survive pickling, and its class may not be
importable where the report is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clustertrain.training.user_frames import LIBRARY, OWN, SourceLine, short_path, source_lines_of

_CALLERS = 4
_MESSAGE_LINES, _MESSAGE_CHARACTERS = 5, 600
_CAUSE_CHARACTERS = 200
COLORS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class Frame:
    """A line of the user's code.

    `path` is relative to `code` if it is below it; `function` is empty for a line that does not compile, and
    "<module>" outside of functions.
    """

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + (
            f" in {self.function}" if self.function not in ("", "<module>") else ""
        )


@dataclass(frozen=True)
class ErrorReport:
    """An exception.

    Attributes:
        name: of its class, without the module.
        classes: the names of its class and of the base classes, as far as they are known.
        frames: the user's, the innermost first.
        cause: the exception that it was raised from.
    """

    name: str
    message: str
    classes: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    cause: ErrorReport | None = None

    def text(self, who: str) -> str:
        """Return the message for people: "rank 1, task.py:28 in forward: ValueError: …".

        Below it are the lines of the user's code that called it, and its causes.
        """
        between = ", " if self.frames else ": "
        lines = [f"{who}{between}{self._headline(_MESSAGE_LINES, _MESSAGE_CHARACTERS)}"]
        lines += [f"called from {frame}" for frame in self.frames[1 : 1 + _CALLERS]]
        if more := len(self.frames[1 + _CALLERS :]):
            lines.append(f"called from {more} more lines of your code")
        lines += [
            f"raised from {each._headline(1, _CAUSE_CHARACTERS)}" for each in self.all() if each is not self
        ]
        return "\n  ".join(lines)

    def whole_message(self) -> str:
        """Return the texts of this exception and its causes, for pattern matching.

        Each is "Type: text", for each of its classes.
        """
        reports = ((name, each) for each in self.all() for name in each.classes or (each.name,))
        return "\n".join(f"{name}: {report.message}" for name, report in reports)

    def all(self) -> Iterator[ErrorReport]:
        """Yield this exception, and then its causes."""
        yield self
        if self.cause is not None:
            yield from self.cause.all()

    def _headline(self, lines: int, characters: int) -> str:
        at = f"{self.frames[0]}: " if self.frames else ""
        message = first_lines(self.message, lines, characters).replace("\n", "\n    ")
        return f"{at}{self.name}" + (f": {message}" if message else "")


def first_lines(text: str, lines: int, characters: int) -> str:
    """Return the beginning of a text, in printable characters, without colors and empty lines."""
    all_lines = [line.rstrip() for line in printable(text).split("\n") if line.strip()]
    shown = "\n".join(all_lines[:lines])
    is_cut = len(all_lines) > lines or len(shown) > characters
    return shown[:characters] + (" …" if is_cut else "")


def printable(text: str) -> str:
    """Return the text without colors.

    Characters that a terminal would interpret are escaped, except newlines.
    """
    text = COLORS.sub("", text).replace("\r\n", "\n").expandtabs(4)
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def user_frames(places: Iterable[SourceLine], code: str) -> tuple[Frame, ...]:
    """Return the frames of the user's code, the innermost first.

    Frames of Python, torch, ray and clustertrain are left out, and those of other installed packages if there
    is a frame outside of them.

    Args:
        places: the outermost first.
        code: the folder of the user's code.
    """
    places = list(places)
    found = source_lines_of(OWN, places, code) or source_lines_of(LIBRARY, places, code)
    return tuple(Frame(printable(short_path(path, code)), line, function) for path, line, function in found)
