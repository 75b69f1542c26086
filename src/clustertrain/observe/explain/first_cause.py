"""Which line of many texts is the first cause of a failure, and which only follow from it.

The loudest error is rarely the first: if one rank of a thousand raises, the others report a lost connection.
So every line that the catalogue knows has a level. A cause comes before a symptom, which something else may
lie behind, and both come before the consequence of another rank's failure. Within a level the order is that
of the sources, then of the time where lines have one, then of the lines.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clustertrain.observe.explain.catalogue import UNKNOWN, KnownError, catalogue

_BEFORE, _AFTER = 3, 2  # lines of evidence around the one that decides
_LONGEST_LINE = 500  # of evidence, in characters
_TRACEBACK = "Traceback (most recent call last):"
# Before each line of a traceback: "[rank1]: ", and "  | " of an exception group.
_OF_RANK = re.compile(r"^(?:\[rank\d+\]:\s?)?")
_PREFIX = re.compile(rf"{_OF_RANK.pattern}(?: *\| ?)?")
_RAISED = re.compile(r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failed|Exit)\b(?::.*)?$")
# The first line after the frames; a group is in the words of its members.
_AFTER_FRAMES = re.compile(r"^(?!(?:Base)?ExceptionGroup:|clustertrain: )[A-Za-z_][\w.<>]*(?:: .*)?$")
# Of a failure whose traceback is not in the end of the log: "rank 1, train.py:12 in f: ValueError: no".
_RECORDED = re.compile(r"^rank \d+, (?P<at>[^:]+:\d+)(?: in [^:]+)?: (?P<message>.*)")
_WRAPPER = re.compile(  # what another process reports of an exception that its own log has
    r"Process(?:Raised|Exited)Exception|ChildFailedError|Ray\w*Error|ActorDiedError|WorkerGroupError|"
    r"UserCodeFailed|ScriptFailed"
)
_FRAME = re.compile(r'^ *File "(?P<path>.+)", line (?P<line>\d+)')
_NOT_OWN = re.compile(r"^<|/(?:site|dist)-packages/|/lib/python3|/clustertrain/(?:driver|training|worker)/")
_COMPARED = 200  # characters of a message: a record has its beginning
_TIME = re.compile(r"(?:\d{4}-(\d\d)-(\d\d)[ T]|\b[IWEF](\d\d)(\d\d) )(\d\d):(\d\d):(\d\d)")


@dataclass(frozen=True)
class EvidenceText:
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
class FoundError:
    """A line that the catalogue knows, or that ends a traceback."""

    entry: KnownError
    source: EvidenceText
    index: int

    @property
    def lines(self) -> Sequence[str]:
        return self.source.text.split("\n")

    @property
    def line(self) -> str:
        return self.lines[self.index].strip()

    @property
    def recorded(self) -> re.Match[str] | None:
        """Its parts, if it is the record of an exception that a line of the user's own code raised."""
        return _RECORDED.match(self.line)

    @property
    def message(self) -> str:
        """The line without what is before each line of a traceback, or before the exception in a record."""
        return _PREFIX.sub("", self.line) if self.recorded is None else self.recorded["message"]

    def is_told_in(self, text: str) -> bool:
        """Return whether a record, which leaves out the module of a class, is about this exception."""
        return re.sub(r"^(?:[\w<>]+\.)+", "", self.message)[:_COMPARED] in text

    @property
    def own_line(self) -> str:
        """The innermost line of the user's own code in the traceback that this line ends: `train.py:12`.

        It is empty if there is none.
        """
        if self.recorded is not None:
            return self.recorded["at"]
        for line in reversed(self.lines[: self.index]):
            if _TRACEBACK in line:
                break
            frame = _FRAME.match(_PREFIX.sub("", line))
            if frame is not None and not _NOT_OWN.search(frame["path"]):
                return f"{Path(frame['path']).name}:{frame['line']}"
        return ""

    @property
    def _time_s(self) -> float | None:
        """When it was on the driver's clock, for an order and a time of day: glog has no year."""
        for line in reversed(self.lines[: self.index + 1]):
            if (found := _TIME.search(line)) is not None:
                return _seconds(*map(int, filter(None, found.groups()))) - int(self.source.ahead_s)
        if self.source.time is None:
            return None
        _, month, day, hours, minutes, seconds, *_ = time.localtime(self.source.time)
        return _seconds(month, day, hours, minutes, seconds)

    @property
    def at(self) -> str:
        """Its time of day on the driver's clock, or empty if unknown."""
        time_s = self._time_s
        return "" if time_s is None else time.strftime("%H:%M:%S", time.gmtime(time_s % 86400))

    @property
    def key(self) -> tuple[int, int, float, int, int]:
        source, time_s = self.source, self._time_s
        rank = -1 if source.rank is None else source.rank
        return self.entry.level, source.order, math.inf if time_s is None else time_s, rank, self.index

    @property
    def shown(self) -> str:
        """Where it is, its rank, its time and its text."""
        return self._shown(self.index)

    @property
    def around(self) -> list[str]:
        """The line and the lines around it, which are of one error."""
        lines = self.lines
        places = range(max(0, self.index - _BEFORE), min(len(lines), self.index + _AFTER + 1))
        return [self._shown(n) for n in places if lines[n].strip()]

    def _shown(self, n: int) -> str:
        source = self.source
        rank = "" if source.rank is None else f"rank {source.rank}"
        at = self.at if n == self.index else ""
        text = self.lines[n].strip()
        text = text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"
        parts = (f"{source.name}:{source.first_line + n}", rank, at, text)
        return "  ".join(part for part in parts if part)


def hits_of(source: EvidenceText) -> list[FoundError]:
    """Return the lines of a text that the catalogue knows: for each entry the first.

    The lines that end a traceback are added if no entry knows them.
    """
    text = source.text
    found: dict[int, KnownError] = {}
    for entry in catalogue():
        matches = [match for pattern in entry.lines if (match := pattern.search(text)) is not None]
        if matches:
            found.setdefault(_index(text, min(match.end() for match in matches)), entry)
    for index, line in _raised(source):
        if index not in found and not _WRAPPER.search(line) and _knows(line) is None:
            found[index] = UNKNOWN
    return [FoundError(entry, source, index) for index, entry in sorted(found.items())]


def _raised(source: EvidenceText) -> Iterator[tuple[int, str]]:
    """Yield the lines that end a traceback, whatever the name of the class.

    Yield later lines that look like one, too.
    """
    text, has_frames = source.text, False
    if (begins := text.find(_TRACEBACK)) < 0:
        return
    prefix = _PREFIX if source.name.endswith(".log") else _OF_RANK  # a record has "  | " before any output
    for index, printed in enumerate(text[begins:].split("\n"), _index(text, begins)):
        line = prefix.sub("", printed)
        if _TRACEBACK in line:
            has_frames = True
        elif (has_frames and _AFTER_FRAMES.match(line)) or _RAISED.match(line):
            has_frames = False
            yield index, line


def known(text: str) -> list[FoundError]:
    """Return the known lines of the message of one error; the line that decides comes first."""
    hits = (hit for hit in hits_of(EvidenceText("", text)) if hit.entry is not UNKNOWN)
    return sorted(hits, key=lambda hit: hit.key)


def shows_lost_peer(text: str) -> bool:
    """Return whether an error only shows that another rank is gone."""
    return has_consequence(text) and all(hit.entry.kind != "cause" for hit in known(text))


def has_consequence(text: str) -> bool:
    """Return whether the text has a line that a rank writes because another one is gone."""
    entries = (entry for entry in catalogue() if entry.kind == "consequence")
    return any(line.search(text) for entry in entries for line in entry.lines)


def first_cause(hits: Iterable[FoundError]) -> FoundError | None:
    """Return the first cause, or None without hits."""
    return min(hits, key=lambda hit: hit.key, default=None)


def _knows(line: str) -> KnownError | None:
    return next((e for e in catalogue() if any(p.search(line) for p in e.lines)), None)


def _seconds(month: int, day: int, hours: int, minutes: int, seconds: int) -> int:
    """Return the seconds, ascending within a year, as if each month had 31 days."""
    return (((month * 31 + day) * 24 + hours) * 60 + minutes) * 60 + seconds


def _index(text: str, position: int) -> int:
    return text.count("\n", 0, position)
