"""The lines of a program's output, with progress bars in their last state.

Of a line that a progress bar draws again after each "\\r", the last state counts; a bar below another one,
for which it moves the cursor down and up, is left out.

Nothing in an output can change a terminal: colors and all other control sequences are left out, and other
unprintable characters are shown as "\\x00".
"""

from __future__ import annotations

import codecs
import io
import re
import unicodedata
from typing import TextIO

_MOST_CHARACTERS = 10_000

_BELOW = re.compile(r"\n[^\n]*\x1b\[A")  # the bar below
_LEFT_OUT = re.compile(
    r"\x1b\[[\d;:<=>?]*[ -/]*(?:[@-~]|$)"  # CSI: colors, and moves of the cursor; one may be cut
    r"|\x1b[\]P^_X][^\x07\x1b]{0,4096}(?:\x07|\x1b\\|\x1b?$)"  # OSC and others: a window's title, a link
    r"|\x1b[ -/]*(?:[0-Z\\^-~]|$)"
    r"|[^\x08]\x08"  # a character and the backspace after it
    r"|[\x07\x08\x1b]"
)
_SHOWN_AS_THEY_ARE = "\t\u200d"  # a tab, and the joiner inside an emoji


def escape_unencodable(stream: TextIO) -> None:
    """Show a character that the locale of the process cannot encode as an escape: users print any."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


class TerminalText:
    """Takes the bytes of an output as they come. A longer line than `most_characters` is cut."""

    def __init__(self, most_characters: int = _MOST_CHARACTERS) -> None:
        self._most_characters = most_characters
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begun = ""  # the line that has no end yet: its last two states, with their sequences

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that these bytes finish."""
        text = self._begun + self._decoder.decode(data)
        *finished, begun = _BELOW.sub("", text).split("\n")
        self._begun = "\r".join(begun.split("\r")[-2:])[: 2 * self._most_characters]
        return [self._shown(line) for line in finished]

    @property
    def open(self) -> list[str]:
        """The line that has no end yet and may still change, unless it is empty.

        At the end of the output it is the last one.
        """
        return [line] if (line := self._shown(self._begun)) else []

    def _shown(self, line: str) -> str:
        states = [state for state in _LEFT_OUT.sub("", line).split("\r") if state.strip()]
        text = states[-1].rstrip() if states else ""
        text = text if len(text) <= self._most_characters else f"{text[: self._most_characters]}…"
        return text if text.isprintable() else "".join(map(_printable, text))


def plain(text: str) -> str:
    """Return a text of a log or an event without anything that can change a terminal.

    The text may have several lines.
    """
    if text.isprintable():
        return text
    printed = TerminalText(len(text))
    return "\n".join([*printed.feed(text.encode(errors="replace")), *printed.open])


def _printable(character: str) -> str:
    is_space = unicodedata.category(character) == "Zs"  # such as the wide one of Chinese and Japanese
    if character.isprintable() or is_space or character in _SHOWN_AS_THEY_ARE:
        return character
    return character.encode("unicode_escape").decode()
