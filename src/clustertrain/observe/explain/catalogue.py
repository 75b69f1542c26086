"""The failures that `explain` knows; docs/site/errors.py writes their list into docs/reference/errors.md."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from clustertrain.errors import ClusterTrainError
from clustertrain.job.yaml_reader import JobLoader
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.recorded_job import job_of

ENTRY_POINTS, LAUNCHERS = ("task", "function", "script"), ("local", "slurm", "kubernetes")
_LEVELS = {"cause": 0, "symptom": 1, "consequence": 2}


@dataclass(frozen=True)
class RunKind:
    """What ran: one of ENTRY_POINTS and of LAUNCHERS; empty if it is unknown."""

    entry_point: str = ""
    launcher: str = ""

    @classmethod
    def of(cls, attempt: Attempt) -> RunKind:
        """Return what applies to an attempt; raises nothing."""
        with suppress(ClusterTrainError):
            claim, job = attempt.claim.read(), job_of(attempt)
            point = "" if job is None else "script" if job.is_script else job.entry_point
            launcher = claim.launcher if claim is not None else ""
            # The remedies for this machine name no key of a launcher: they hold for any other as well.
            return cls(point, launcher if launcher in ("", *LAUNCHERS) else "local")
        return cls()


@dataclass(frozen=True)
class Remedy:
    """A part of a remedy, and the words for which it holds; without a word of a kind it holds for all."""

    words: frozenset[str]
    text: str

    def holds(self, where: RunKind) -> bool:
        kinds = ((ENTRY_POINTS, where.entry_point), (LAUNCHERS, where.launcher))
        asked = [(self.words.intersection(kind), name) for kind, name in kinds if name]
        return all(not words or name in words for words, name in asked)


@dataclass(frozen=True)
class KnownError:
    """A failure: an object of catalogue.yaml, which describes the fields."""

    name: str
    lines: tuple[re.Pattern[str], ...]
    cause: str
    change: tuple[Remedy, ...]
    kind: str = "cause"
    retry: str = "unless_same"
    ends_as: str = "error"
    told: bool = False
    source: str = ""

    def change_for(self, where: RunKind, node: str = "NODE") -> str:
        """Return what to change there; `node`: the node that failed."""
        return " ".join(part.text for part in self.change if part.holds(where)).replace("NODE", node)

    @property
    def level(self) -> int:
        """Causes come before symptoms, and these before the consequences of another rank's failure."""
        return _LEVELS[self.kind]


UNKNOWN = KnownError(
    "unknown",
    (),
    "unknown: an exception that neither the catalogue knows nor a line of your own code raised",
    (Remedy(frozenset(), "Read the lines around it: the code that raised it is in the traceback."),),
    kind="symptom",
)


@cache
def catalogue() -> tuple[KnownError, ...]:
    """Return all entries. Where two fit the same line, the first one counts."""
    groups = yaml.load(files(__package__).joinpath("catalogue.yaml").read_text("utf-8"), JobLoader)
    return tuple(_entry(row) for group in groups.values() for row in group)


def _entry(row: dict[str, Any]) -> KnownError:
    change = row["change"] if isinstance(row["change"], dict) else {"any": row["change"]}
    parts = tuple(Remedy(frozenset(words.split(", ")) - {"any"}, text) for words, text in change.items())
    lines = tuple(re.compile(line, re.MULTILINE) for line in row["lines"])
    return KnownError(**{**row, "lines": lines, "change": parts})


@cache
def by_name() -> dict[str, KnownError]:
    return {entry.name: entry for entry in catalogue()}


def unchanged(what: str, entry: KnownError, where: RunKind) -> str:
    """Return the message about a limit that a run without a change would reach again."""
    text = f"{what}\nAn unchanged run would fail again. {entry.change_for(where)}"
    of_memory = "\nTo continue with a changed job, start it again with --accept-changes."
    return text + of_memory * (entry.ends_as == "out_of_memory" and where.entry_point != "script")
