"""A reference to an attempt, as text that one process passes to another."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.storage import Location, open_store
from clustertrain.storage.record_file import typed


@dataclass(frozen=True)
class AttemptRef:
    """An attempt, by its storage, the name of its run, its generation and its number."""

    location: Location
    name: str
    generation: int
    attempt: int

    @classmethod
    def of(cls, attempt: Attempt) -> AttemptRef:
        run = attempt.run
        return cls(run.store.location, run.name, run.generation, attempt.n)

    @classmethod
    def from_text(cls, text: str) -> AttemptRef:
        """Read a reference from the text that `to_text` returned."""
        return typed(cls, json.loads(text))

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    def open(self) -> Attempt:
        return RunDir(open_store(self.location), self.name, self.generation).attempt(self.attempt)
