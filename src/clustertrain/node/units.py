"""Numbers with units, from a job file and for tables: `1e-4`, `2h`, `1:30:00`, `16Gi`, `500MB`.

Every parser accepts numbers and text (some writers quote numbers, and job/yaml_reader.py keeps `1:30:00`
as text) and raises ValueError with the rule and an example.

    duration_text, size_value   exact: what the parsers read back as the same number
    time_text, size_text        rounded, for people

pydantic's own types refuse `2h`, `16Gi` and `1e3`, and take `20:00` for 20 hours: SLURM means minutes.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from decimal import Decimal
from math import isfinite

LARGEST_INTEGER = 2**63 - 1
LONGEST_DURATION_S = 100 * 365 * 86_400
LATEST_S = 10.0**11  # of a time in a file, in seconds since 1970; the clock functions refuse much later ones

# Bounded lengths: the time of Decimal and int grows with the exponent and the number of digits.
_DIGITS = r"(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?"
_NUMBER = re.compile(rf"[+-]?{_DIGITS}", re.ASCII)
_PARTS = re.compile(
    rf"(?:({_DIGITS})\s*d)?\s*(?:({_DIGITS})\s*h)?\s*(?:({_DIGITS})\s*m)?\s*(?:({_DIGITS})\s*s)?", re.ASCII
)
_CLOCK = re.compile(r"(?:(?:(\d{1,4})-)?(\d{1,6}):)?(\d{1,6}):([0-5]?\d(?:\.\d{1,12})?)", re.ASCII)
_SIZE = re.compile(rf"({_DIGITS})\s*([a-zA-Z]*)", re.ASCII)
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{unit}{b}": 1000**power for power, unit in enumerate("kmgtp", 1) for b in ("", "b")},
    **{f"{unit}i{b}": 1024**power for power, unit in enumerate("kmgtp", 1) for b in ("", "b")},
}

_INTEGER_RULE = "must be a whole number, such as 3 or 1e3"
_NUMBER_RULE = "must be a number, such as 0.1 or 1e-4"
_DURATION_RULE = "must be a duration, such as 90s, 20m, 2h, 1d12h or 1:30:00 (a bare number is seconds)"
_SIZE_RULE = "must be a size, such as 16Gi (1024³ bytes) or 500MB (1000² bytes)"


def integer(value: object) -> int:
    """Return the value as a whole number; an integral float such as 1e3 counts as one.

    Raises:
        ValueError: not a number, not whole, or beyond 64 bits.
    """
    exact = _decimal(value, _INTEGER_RULE)
    if abs(exact) > LARGEST_INTEGER:
        raise ValueError(f"{_INTEGER_RULE}, and at most 2⁶³ - 1 = {LARGEST_INTEGER}")
    if exact != exact.to_integral_value():
        raise ValueError(_INTEGER_RULE)
    return int(exact)


def number(value: object) -> float:
    """Return the value as a finite number.

    Raises:
        ValueError: not a number, or not finite.
    """
    result = float(_decimal(value, _NUMBER_RULE))
    if not isfinite(result):
        raise ValueError(f"{_NUMBER_RULE}, and finite")
    return result


def duration_s(value: object) -> float:
    """Return a duration in seconds, from `2h`, `1d12h`, `1:30:00` (h:m:s), `20:00` (m:s) or bare seconds.

    Raises:
        ValueError: not a duration, negative, or longer than a hundred years.
    """
    seconds = _clock_or_parts_s(value.strip()) if isinstance(value, str) else None
    if seconds is None:
        seconds = _decimal(value, _DURATION_RULE)
    if not 0 <= seconds <= LONGEST_DURATION_S:
        raise ValueError(f"{_DURATION_RULE}, from 0 to 100 years")
    return float(seconds)


def size_bytes(value: object) -> int:
    """Return a size in bytes.

    k, M, G, T, P are powers of 1000, Ki, Mi, Gi, Ti, Pi of 1024 (as in Kubernetes).

    Raises:
        ValueError: not a size, negative, or beyond 64 bits.
    """
    size = None
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        unit = _SIZE_UNITS.get(match[2].lower())
        size = Decimal(match[1]) * unit if unit else None
    elif not isinstance(value, str):
        size = _decimal(value, _SIZE_RULE)
    if size is None or not 0 <= size <= LARGEST_INTEGER:
        raise ValueError(_SIZE_RULE)
    return int(size)


def duration_text(seconds: float) -> str:
    """Return the text that duration_s reads back as exactly this many seconds, such as `1h30m`."""
    if seconds != int(seconds) or seconds == 0:
        return f"{seconds!r}s"
    rest, text = int(seconds), ""
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length_s)
        text += f"{count}{unit}" if count else ""
    return text


def size_value(size: int) -> str | int:
    """Return the value that size_bytes reads back as this many bytes: `16Gi`, or a plain number of bytes."""
    for power, unit in ((5, "Pi"), (4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return size


def shortened(text: str, most: int = 60) -> str:
    """Return the text on one line of printable characters, cut to a length that fits an error."""
    text = text[: most + 1]
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _decimal(value: object, rule: str) -> Decimal:
    """Return the exact number of a YAML scalar; a bool is refused, although Python's bool is an int."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return Decimal(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(rule)
    if not isfinite(value) if isinstance(value, float) else abs(value) > LARGEST_INTEGER:
        raise ValueError(f"{rule}, finite and within 64 bits")
    return Decimal(value)


def _clock_or_parts_s(text: str) -> Decimal | None:
    if match := _CLOCK.fullmatch(text):
        return _total_s(match.groups())
    match = _PARTS.fullmatch(text)
    return _total_s(match.groups()) if match and text else None


def _total_s(parts: tuple[str | None, ...]) -> Decimal:
    days, hours, minutes, seconds = (Decimal(part or 0) for part in parts)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def aligned(rows: Sequence[Sequence[str]], widest: int = sys.maxsize) -> list[str]:
    """Return a line for each row, its cells in columns; rich cuts its tables at a width, and pipes have none.

    Args:
        widest: of a column, in characters; a longer cell moves the rest of its own row only.
    """
    widths = [min(max(map(len, column)), widest) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def size_text(size_bytes: float) -> str:
    """Return bytes as people read them: 1,536 → 1.5 KiB."""
    from pydantic import ByteSize

    return ByteSize(size_bytes).human_readable(separator=" ")


def moment_text(seconds: float) -> str:
    """Return a time in seconds since 1970 by the clock on the wall: 2026-07-31 14:05:00."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def time_text(seconds: float) -> str:
    """Return seconds as people read them: 3,725 → 1:02:05."""
    minutes, s = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"
