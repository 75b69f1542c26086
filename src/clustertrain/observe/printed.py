"""The output of a program as a terminal shows it: lines that are finished, and lines that may still change.

A progress bar writes "\\r" and draws itself again, and nested bars move the cursor up and down. So the lines
from the highest that the cursor can return to are kept open, and every other line is finished once.

Nothing in an output can change a terminal: colors and all other control sequences are left out, and other
unprintable characters are shown as "\\x00".
"""

from __future__ import annotations

import codecs
import re

_MOST_CHARACTERS = 10_000
_MOST_ROWS = 50  # that are open, whatever a program claims to draw
_CALLS_BELOW = 5

_SEQUENCE = (
    r"\x1b(?:\[(?P<number>\d*)(?:[\d;:<=>?]*)[ -/]*(?P<final>[@-~])"  # CSI: colors, and moves of the cursor
    r"|[\]P^_X][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # OSC and others: a window's title, a link
    r"|[ -/]*[0-Z\\^-~])"
)
_TOKEN = re.compile(rf"(?P<text>[^\x00-\x08\x0a-\x1f\x7f]+)|{_SEQUENCE}|(?P<control>[\x00-\x1f\x7f])")
# The beginning of a sequence whose end is not there yet.
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]P^_X][^\x07\x1b]{0,4096}\x1b?|[ -/]*)$")
_SHOWN_AS_THEY_ARE = "\t\u200d"  # a tab, and the joiner inside an emoji


class Printed:
    """Takes the bytes of an output as they come. A longer line than `most_characters` is cut."""

    def __init__(self, most_characters: int = _MOST_CHARACTERS) -> None:
        self._most_characters = most_characters
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begun = ""
        self._rows = [""]
        self._row = 0
        self._height = 0  # how many rows the program moves the cursor up at most
        self._calls_below = 0  # since it was moved up, or was in the first row
        self._replaces = False  # the next text replaces the row: the cursor is at its begin

    def feed(self, data: bytes) -> list[str]:
        """The lines that these bytes finish. Call it without bytes as well: in the output of a program that
        moves the cursor up, a line is finished if the cursor stays below it for a few calls."""
        text = self._begun + self._decoder.decode(data)
        begun = _BEGUN.search(text)
        self._begun = begun.group() if begun else ""
        for token in _TOKEN.finditer(text, 0, begun.start() if begun else len(text)):
            if token["text"] is not None:
                self._write(token["text"])
            elif token["control"] is not None:
                self._control(token["control"])
            elif token["final"] is not None:
                self._move(token["final"], token["number"])
        return self._release()

    @property
    def open(self) -> list[str]:
        """The lines that may still change, without empty ones. At the end of the output they are its last."""
        return [row.rstrip() for row in self._rows if row.strip()]

    def _write(self, text: str) -> None:
        if self._replaces:
            self._rows[self._row], self._replaces = "", False
        row = self._rows[self._row]
        most = self._most_characters
        if len(row) <= most:
            row += text if text.isprintable() else "".join(map(_shown, text))
            self._rows[self._row] = row if len(row) <= most else f"{row[:most]}…"

    def _control(self, character: str) -> None:
        if character == "\n":
            self._row += 1
            if self._row == len(self._rows):
                self._rows.append("")
            self._replaces = True
        elif character == "\r":
            self._replaces = True
        elif character == "\b":
            self._rows[self._row] = self._rows[self._row][:-1]
        elif character not in "\a\x1b":
            self._write(character)

    def _move(self, final: str, number: str) -> None:
        distance = int(number or 1) if len(number) < 4 else 0
        if final == "A":
            self._height = min(_MOST_ROWS, max(self._height, distance))
            self._calls_below = 0
            self._row, self._replaces = max(0, self._row - distance), True
        elif final == "B":
            self._row, self._replaces = min(len(self._rows) - 1, self._row + distance), True
        elif final == "K" and (self._replaces or number == "2"):
            self._rows[self._row] = ""

    def _release(self) -> list[str]:
        self._calls_below = self._calls_below + 1 if self._row else 0
        may_return = self._height if self._calls_below < _CALLS_BELOW else 0
        count = max(0, self._row - may_return, len(self._rows) - _MOST_ROWS)
        lines, self._rows = self._rows[:count], self._rows[count:]
        self._row = max(0, self._row - count)
        return [line.rstrip() for line in lines]


def plain(text: str) -> str:
    """A text of a log or an event, perhaps of several lines, without anything that can change a terminal."""
    if text.isprintable():
        return text
    printed = Printed(len(text))
    lines = printed.feed(text.encode(errors="replace"))
    return "\n".join([*lines, *printed.open])


def _shown(character: str) -> str:
    if character.isprintable() or character in _SHOWN_AS_THEY_ARE:
        return character
    return character.encode("unicode_escape").decode()
