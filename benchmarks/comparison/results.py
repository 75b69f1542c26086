"""What was measured: values with the load beside them, rows of them, and the report, which is a JSON file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

MAX_LOAD = 0.2
"""A value is loaded if other processes used more processors than this just before or after it."""


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Value:
    """One measured value. `load` is the number of processors that other processes used."""

    value: float
    load: float

    @property
    def loaded(self) -> bool:
        return self.load > MAX_LOAD


@dataclass(frozen=True)
class Row:
    """The values of a program for a figure, or why there are none."""

    figure: str
    program: str
    values: tuple[Value, ...] = ()
    missing: str = ""

    @property
    def spread(self) -> Spread | None:
        return Spread.of([each.value for each in self.values]) if self.values else None


@dataclass(frozen=True)
class Report:
    """All rows, in the order of their measurement, and where they were measured."""

    taken: str
    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    rows: tuple[Row, ...] = ()

    def row(self, figure: str, program: str) -> Row | None:
        return next((row for row in self.rows if (row.figure, row.program) == (figure, program)), None)

    def with_values(self, figure: str, program: str, values: Sequence[Value], missing: str = "") -> Report:
        """The report with these values added to the row, or with a reason why it has none."""
        old = self.row(figure, program)
        if old is None:
            return replace(self, rows=(*self.rows, Row(figure, program, tuple(values), missing)))
        new = replace(old, values=old.values + tuple(values), missing=missing or old.missing)
        return replace(self, rows=tuple(new if row is old else row for row in self.rows))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        fields = json.loads(path.read_text())
        rows = fields.pop("rows")
        for row in rows:
            row["values"] = tuple(Value(**each) for each in row["values"])
        return cls(**fields, rows=tuple(Row(**row) for row in rows))
