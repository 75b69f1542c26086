"""How a program of the comparison trains. Imports no torch, so that the bench reads it as well."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

RANKS = 2
BATCH_SIZE = 64  # per rank


@dataclass(frozen=True)
class Settings:
    """`notes` is the folder for the notes of the steps. `data` is `samples`, `tensors`, or `batch`: the same
    batch at each step. With `save_every` 0 nothing is saved. `callback_s` is what a
    callback takes after each step."""

    notes: str
    steps: int
    data: str = "samples"
    save_every: int = 0
    callback_s: float = 0.0

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def settings_of_command() -> Settings:
    """Reads the command's argument `--settings`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=json.loads, required=True)
    return Settings(**parser.parse_args().settings)
