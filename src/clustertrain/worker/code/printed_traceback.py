"""Reads the last traceback that Python printed.

It is in the output of a script, or in the message of an exception that torch took over from another process.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from itertools import takewhile

from clustertrain.worker.code.error_report import COLORS, ErrorReport, user_frames

_HEADER = "Traceback (most recent call last):"  # a progress bar without an end may be before it on the line
# torch.distributed prefixes each line of an uncaught exception: "[rank1]: ValueError: …". The lines of its
# log that follow have the prefix without the blank: "[rank1]:[W1204 …".
_RANK = re.compile(r"\[rank\d+\]: ")
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$')
_ERROR = re.compile(r"^([A-Za-z_][\w.<>]*)(?:: ?(.*))?$")  # in f.<locals>.NoData
# What Python prints of an exception that does not end it: of a destructor, of a function of atexit.
_IGNORED = ("Exception ignored ", "Error in atexit.")


def inner_report(message: str, code: str) -> ErrorReport | None:
    """Return the exception of another process or thread from a message of torch; None for other messages.

    torch put its traceback into the message of a new exception (torch._utils.ExceptionWrapper). `code`: the
    folder of the user's code.
    """
    is_caught = message.startswith("Caught ") and f"\nOriginal {_HEADER}\n" in message
    return last_exception(lines := message.split("\n"), code, lines_after=len(lines)) if is_caught else None


def last_exception(output: Sequence[str], code: str, *, lines_after: int) -> ErrorReport | None:
    """Return the exception whose traceback is at the end of the lines of an output, or None.

    Args:
        code: the folder of the user's code.
        lines_after: how many lines of other output may follow.
    """
    plain = (COLORS.sub("", line).rstrip() for line in output)  # Python 3.13 has some with FORCE_COLOR
    # W&B prints a summary of many lines at the end of the process.
    lines = [line for line in plain if line and not line.startswith("wandb:")]
    ignored = {n + 1 for n, line in enumerate(lines) if line.startswith(_IGNORED)}
    begins = [n for n, line in enumerate(lines) if line.endswith(_HEADER) and n not in ignored]
    if not begins:
        return None
    prefix = found[0] if (found := _RANK.search(lines[begins[-1]])) else ""
    after = lines[begins[-1] + 1 :]
    frames = [*takewhile(lambda line: line.removeprefix(prefix).startswith(" "), after)]
    error, *rest = after[len(frames) :] or [""]
    more = [*takewhile(lambda line: line.startswith(prefix or (" ", "\t")), rest)]
    others = [*takewhile(lambda line: not line.startswith(_IGNORED), rest[len(more) :])]
    found = _ERROR.match(error.removeprefix(prefix))
    if found is None or len(others) > lines_after:
        return None
    name = found[1].rpartition(".")[2]
    message = "\n".join([found[2] or "", *(line.removeprefix(prefix) for line in more)]).strip()
    matches = filter(None, (_FRAME.match(line.removeprefix(prefix)) for line in frames))
    places = [(place[1], int(place[2]), place[3]) for place in matches]
    return ErrorReport(name, message, base_names(name), user_frames(places, code))


def base_names(name: str) -> tuple[str, ...]:
    """Return the names of an exception class of Python and of its bases.

    The result is only the name if it is not a class of Python.
    """
    found = getattr(builtins, name, None)
    return tuple(base.__name__ for base in found.__mro__) if isinstance(found, type) else (name,)
