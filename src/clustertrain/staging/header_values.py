"""Values of the headers that a server sends, checked: a server may send any text.

`\\d` would match digits of all alphabets, and Python refuses to read a number of thousands of digits.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[0-9]{1,19}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_LONGEST_VALIDATOR = 500  # it is sent back in a header, and stored in a progress file


def number_of(text: str) -> int | None:
    """The number in a Content-Length or Retry-After, or None for any other text."""
    return int(text) if _NUMBER.fullmatch(text.strip()) else None


def sent_range(text: str, offset: int, end: int | None) -> tuple[int, int, int] | None:
    """(offset, end, total) of a Content-Range; None if it is another range than the requested one, or any
    other text. An `end` beyond the file, or None, requests the bytes up to its own end."""
    match = _CONTENT_RANGE.fullmatch(text.strip())
    first, last, total = (int(group) for group in match.groups()) if match else (-1, -1, 0)
    is_that = first == offset <= last and last + 1 == min(end or total, total)
    return (offset, last + 1, total) if is_that else None


def validator_of(text: str | None) -> str | None:
    """The validator that a server sent, or None if it sent none, or one that cannot be sent back."""
    usable = text and text.isascii() and text.isprintable() and len(text) <= _LONGEST_VALIDATOR
    return text if usable else None
