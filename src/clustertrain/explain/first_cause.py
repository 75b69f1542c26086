"""Which line of many texts is the first cause of a failure, and which only follow from it.

The loudest error is rarely the first: if one rank of a thousand raises, the others report a lost connection.
So every line that the catalogue knows has a level. A cause comes before a symptom, which something else may
lie behind, and both come before the consequence of another rank's failure. Within a level the order is that
of the sources, then of the time where lines have one, then of the lines.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clustertrain.explain.catalogue import UNKNOWN, Entry, catalogue

_BEFORE, _AFTER = 3, 2  # lines of evidence around the one that decides
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(
    r"^(?:\[rank\d+\]:\s?)?(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failed|Exit)\b(?::.*)?$", re.M
)
_WRAPPER = re.compile(  # what another process reports of an exception that its own log has
    r"Process(?:Raised|Exited)Exception|ChildFailedError|Ray\w*Error|ActorDiedError|WorkerGroupError|"
    r"UserCodeFailed|ScriptFailed"
)
_FRAME = re.compile(r'^(?:\[rank\d+\]: ?)? *File "(?P<path>.+)", line (?P<line>\d+)')
_NOT_OWN = re.compile(r"^<|/(?:site|dist)-packages/|/lib/python3|/clustertrain/(?:training|worker)/")
_TIME = re.compile(r"(?:\d{4}-\d\d-\d\d[ T]|\b[IWEF]\d{4} )(?P<at>\d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class Source:
    """A text: a log, or the text of a record or event.

    Attributes:
        name: the file, as a path in the folder of the attempt.
        first_line: the number of its first line in the file.
        order: sources with a smaller number decide first.
        time: of a record, in seconds since 1970.
        ahead_s: how far the clock of its times of day was ahead of the driver's.
    """

    name: str
    text: str
    rank: int | None = None
    host: str = ""
    order: int = 0
    first_line: int = 1
    time: float | None = None
    ahead_s: float = 0.0


@dataclass(frozen=True)
class Hit:
    """A line that the catalogue knows, or that ends a traceback."""

    entry: Entry
    source: Source
    index: int

    @property
    def lines(self) -> Sequence[str]:
        return self.source.text.split("\n")

    @property
    def line(self) -> str:
        return self.lines[self.index].strip()

    @property
    def message(self) -> str:
        """The line without torch's `[rank1]: ` before it."""
        return self.line.partition("]: ")[2] if self.line.startswith("[rank") else self.line

    @property
    def own_line(self) -> str:
        """The innermost line of the user's own code in the traceback that it ends: `train.py:12`; empty
        if there is none."""
        for line in reversed(self.lines[: self.index]):
            if _TRACEBACK in line:
                break
            if (frame := _FRAME.match(line)) is not None and not _NOT_OWN.search(frame["path"]):
                return f"{Path(frame['path']).name}:{frame['line']}"
        return ""

    @property
    def at(self) -> str:
        """Its time of day on the driver's clock, or empty if unknown."""
        for line in reversed(self.lines[: self.index + 1]):
            if (found := _TIME.search(line)) is not None:
                hours, minutes, seconds = map(int, found["at"].split(":"))
                of_day_s = hours * 3600 + minutes * 60 + seconds - round(self.source.ahead_s)
                return time.strftime("%H:%M:%S", time.gmtime(of_day_s % 86400))
        time_s = self.source.time
        return "" if time_s is None else time.strftime("%H:%M:%S", time.localtime(time_s))

    @property
    def key(self) -> tuple[int, int, str, int, int]:
        source = self.source
        rank = -1 if source.rank is None else source.rank
        return self.entry.level, source.order, self.at or "~", rank, self.index

    @property
    def shown(self) -> str:
        """Where it is, its rank, its time and its text."""
        return self._shown(self.index)

    @property
    def around(self) -> list[str]:
        """It and the lines around it: those of one error."""
        lines = self.lines
        places = range(max(0, self.index - _BEFORE), min(len(lines), self.index + _AFTER + 1))
        return [self._shown(n) for n in places if lines[n].strip()]

    def _shown(self, n: int) -> str:
        source = self.source
        rank = "" if source.rank is None else f"rank {source.rank}"
        at = self.at if n == self.index else ""
        parts = (f"{source.name}:{source.first_line + n}", rank, at, self.lines[n].strip())
        return "  ".join(part for part in parts if part)


def hits_of(source: Source) -> list[Hit]:
    """The lines of a text that the catalogue knows: for each entry the first. Then the lines that end a
    traceback, if no entry knows them."""
    text = source.text
    found: dict[int, Entry] = {}
    for entry in catalogue():
        matches = [match for pattern in entry.lines if (match := pattern.search(text)) is not None]
        if matches:
            found.setdefault(_index(text, min(match.end() for match in matches)), entry)
    begins = text.find(_TRACEBACK)
    for match in _RAISED.finditer(text, begins) if begins >= 0 else ():
        index = _index(text, match.start())
        if index not in found and not _WRAPPER.search(match[0]) and _knows(match[0]) is None:
            found[index] = UNKNOWN
    return [Hit(entry, source, index) for index, entry in sorted(found.items())]


def first_cause(hits: Iterable[Hit]) -> Hit | None:
    """The first cause, or None without hits."""
    return min(hits, key=lambda hit: hit.key, default=None)


def _knows(line: str) -> Entry | None:
    return next((e for e in catalogue() if any(p.search(line) for p in e.lines)), None)


def _index(text: str, position: int) -> int:
    return text.count("\n", 0, position)
