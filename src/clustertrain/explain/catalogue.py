"""The failures that `explain` knows, and their table in docs/reference/errors.md. To refresh it:

python -m clustertrain.explain.catalogue docs/reference/errors.md
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import yaml

from clustertrain.job.yaml_reader import JobLoader

BEGIN = "<!-- catalogue: the table below is clustertrain.explain.catalogue.markdown() -->"
END = "<!-- end of catalogue -->"
_LEVELS = {"cause": 0, "symptom": 1, "consequence": 2}


@dataclass(frozen=True)
class Entry:
    """A failure: an object of catalogue.yaml, which describes the fields."""

    name: str
    lines: tuple[re.Pattern[str], ...]
    cause: str
    change: str
    kind: str = "cause"
    retry: str = "unless_same"
    ends_as: str = "error"
    told: bool = False
    source: str = ""

    @property
    def level(self) -> int:
        """Causes come before symptoms, and these before the consequences of another rank's failure."""
        return _LEVELS[self.kind]


UNKNOWN = Entry(
    "unknown",
    (),
    "unknown: an exception that neither the catalogue knows nor a line of your own code raised",
    "Read the lines around it: the code that raised it is in the traceback.",
    kind="symptom",
)


@cache
def catalogue() -> tuple[Entry, ...]:
    """All entries. Where two fit the same line, the first one counts."""
    groups = yaml.load(files(__package__).joinpath("catalogue.yaml").read_text("utf-8"), JobLoader)
    rows = [row for group in groups.values() for row in group]
    return tuple(
        Entry(**{**row, "lines": tuple(re.compile(line, re.MULTILINE) for line in row["lines"])})
        for row in rows
    )


@cache
def by_name() -> dict[str, Entry]:
    return {entry.name: entry for entry in catalogue()}


def unchanged(what: str, entry: Entry) -> str:
    """The message about a limit that a run without a change would reach again."""
    text = f"{what}\nAn unchanged run would fail again. {entry.change}"
    of_memory = "\nTo continue with a changed job, start it again with --accept-changes."
    return text + of_memory * (entry.ends_as == "out_of_memory")


def markdown() -> str:
    """The table of docs/reference/errors.md."""
    rows = ["| failure | cause | what to change | tried again | seen here |", "|---|---|---|---|---|"]
    for entry in catalogue():
        cause = entry.cause if entry.kind == "cause" else f"{entry.cause} ({entry.kind})"
        seen = f"no: {entry.source}" if entry.source else "yes"
        cells = (f"`{entry.name}`", cause, entry.change, entry.retry.replace("_", " "), seen)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def write_table(page: Path) -> None:
    """Replace the table of a page between its marks."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{markdown()}\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    write_table(Path(sys.argv[1]))
