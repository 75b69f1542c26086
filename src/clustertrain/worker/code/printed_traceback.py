"""Reads a traceback that Python printed: in the output of a script, or in the message of an exception that
torch took over from another process."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from dataclasses import replace

from clustertrain.training.user_frames import SourceLine
from clustertrain.worker.code.error_report import COLORS, ErrorReport, user_frames

# torch._utils.ExceptionWrapper: an exception of a loader process, or of a thread that pins memory.
_CAUGHT = re.compile(r"^Caught \w+ in [^\n]*\.\n(?=Original )")
# A progress bar, or a row of dots, ends without a newline, so that the traceback begins on its line.
_PROGRESS_BAR = re.compile(
    r"^(?:.+?(?=\[rank\d+\]: .*Traceback \(most recent)|.*\r.*?(?=Traceback \(most recent call last\):$))"
)
# torch.distributed prefixes each line of an uncaught exception: "[rank1]: ValueError: …". The lines of its
# log that follow have the prefix without the blank: "[rank1]:[W1204 …".
_RANK = re.compile(r"^\[rank\d+\]:(?: |$)")
# What follows on the header of an ExceptionGroup is not read: the last lines of the output are shown instead.
_HEADER = re.compile(r"^(?:Original )?(?:  \+ Exception Group )?Traceback \(most recent call last\):$")
_FRAME = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_ERROR = re.compile(r"^(?P<name>[A-Za-z_][\w.<>]*)(?:: ?(?P<message>.*))?$")  # in f.<locals>.NoData
# What Python prints of an exception that does not end it: of a destructor, of a function of atexit.
_IGNORED = re.compile(r"^(?:Exception ignored |Error in atexit\.)")
_RAISED_FROM = "The above exception was the direct cause of the following exception:"
_WHILE_HANDLING = "During handling of the above exception, another exception occurred:"


def inner_report(message: str, code: str) -> ErrorReport | None:
    """The exception of another process or thread whose traceback torch put into the message of a new one;
    None for any other message. `code`: the folder of the user's code."""
    return _last_exception(message.split("\n"), code) if _CAUGHT.match(message) else None


def last_exception(output: Sequence[str], code: str, *, lines_after: int) -> ErrorReport | None:
    """The exception whose traceback is at the end of the lines of an output, or None.

    Args:
        code: the folder of the user's code.
        lines_after: how many lines of other output may follow.
    """
    plain = (COLORS.sub("", line).rstrip() for line in output)  # Python 3.13 has some with FORCE_COLOR
    # W&B prints a summary of many lines at the end of the process.
    lines = [_PROGRESS_BAR.sub("", line) for line in plain if line and not line.startswith("wandb:")]
    return _last_exception(_without_ignored(lines), code, lines_after)


def _without_ignored(lines: Sequence[str]) -> Sequence[str]:
    """The lines up to the exceptions that Python has ignored after the last other one."""
    headers = [n for n, line in enumerate(lines) if _HEADER.match(_RANK.sub("", line))]
    last = next((n for n in reversed(headers) if n == 0 or not _IGNORED.match(lines[n - 1])), 0)
    end = next((n for n in range(last, len(lines)) if _IGNORED.match(lines[n])), len(lines))
    return lines[:end]


def base_names(name: str) -> tuple[str, ...]:
    """The names of an exception class of Python and of its bases; only the name if it is none of Python's."""
    found = getattr(builtins, name, None)
    return tuple(base.__name__ for base in found.__mro__) if isinstance(found, type) else (name,)


def _last_exception(lines: Sequence[str], code: str, lines_after: int | None = None) -> ErrorReport | None:
    """`lines_after`: None if the lines end with the exception."""
    plain = [_RANK.sub("", line) for line in lines]
    begins = [n for n in range(len(plain)) if _HEADER.match(plain[n]) or _does_not_compile(plain, n)]
    if not begins:
        return None
    begin = begins[-1]
    end = len(lines) if lines_after is None else _end(lines, begin)
    report = _exception(plain[begin:end], code)
    if report is None or len(lines) - end > (lines_after or 0):
        return None
    return _with_cause(report, plain[:begin], code)


def _does_not_compile(lines: Sequence[str], n: int) -> bool:
    """Whether this is the first line on a script that Python cannot compile: there is no header."""
    found = _FRAME.match(lines[n])
    return found is not None and found["function"] is None and not any(map(_HEADER.match, lines[:n]))


def _end(lines: Sequence[str], begin: int) -> int:
    """The line after an exception in other output: the first without torch's prefix. Without that prefix the
    exception ends with the line "Type: message" and the indented lines below."""
    after = range(begin + 1, len(lines))
    if _RANK.match(lines[begin]):
        return next((n for n in after if not _RANK.match(lines[n])), len(lines))
    outer = [n for n in after if not lines[n].startswith((" ", "\t"))]
    return [*outer, len(lines), len(lines)][1]


def _with_cause(report: ErrorReport, before: Sequence[str], code: str) -> ErrorReport:
    above = [line for line in before if line.strip()]
    if not above or above[-1] not in (_RAISED_FROM, _WHILE_HANDLING):
        return report
    cause = _last_exception(above[:-1], code)
    return replace(report, cause=cause, is_raised_from=above[-1] == _RAISED_FROM)


def _exception(lines: Sequence[str], code: str) -> ErrorReport | None:
    """The frames, and then "Type: message", which may have several lines. The header before is optional."""
    places: list[SourceLine] = []
    for n, line in enumerate(lines):
        if found := _FRAME.match(line):
            places.append((found["path"], int(found["line"]), found["function"] or ""))
        elif error := None if line.startswith(" ") or _HEADER.match(line) else _ERROR.match(line):
            name = error["name"].rpartition(".")[2]
            message = "\n".join([error["message"] or "", *lines[n + 1 :]]).strip()
            return ErrorReport(name, message, base_names(name), user_frames(places, code))
    return None
