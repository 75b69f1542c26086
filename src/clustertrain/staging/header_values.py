"""Values of the headers that a server sends, checked: a server may send any text.

`\\d` would match digits of all alphabets, and Python refuses to read a number of thousands of digits.
"""

from __future__ import annotations

import re

_LENGTH = re.compile(r"[0-9]{1,19}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_LONGEST_VALIDATOR = 500  # it is sent back in a header, and stored in a progress file


def length_of(text: str) -> int | None:
    """The number of bytes in a Content-Length, or None for any other text."""
    return int(text) if _LENGTH.fullmatch(text.strip()) else None


def content_range(text: str) -> tuple[int, int, int] | None:
    """(first, last, total) of a Content-Range, or None for any other text."""
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first, last, total = (int(group) for group in match.groups())
    return (first, last, total) if first <= last < total else None


def validator_of(text: str | None) -> str | None:
    """The validator that a server sent, or None if it sent none, or one that cannot be sent back."""
    usable = text and text.isascii() and text.isprintable() and len(text) <= _LONGEST_VALIDATOR
    return text if usable else None
