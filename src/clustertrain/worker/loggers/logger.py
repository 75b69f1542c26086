"""The interface of a logger, and what identifies the curve that it writes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from clustertrain.run_files.folder.run_dir import Attempt, RunDir


@dataclass(frozen=True)
class Point:
    """The values of one step, by names such as "train/loss".

    Attributes:
        images: uint8 (channels, height, width), on the CPU.
    """

    step: int
    time_s: float
    values: Mapping[str, float]
    images: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """The run whose curve is written.

    Attributes:
        attempt: the start of the run.
        first_step: the first step of this start of the worker group; earlier starts may have written later
            steps, which are repeated.
        hyperparameters: the args and the settings of the training loop, without secrets.
    """

    attempt: Attempt
    first_step: int
    hyperparameters: Mapping[str, str | int | float]

    @property
    def run(self) -> RunDir:
        return self.attempt.run

    @property
    def label(self) -> str:
        """The name that people see."""
        run = self.run
        return run.name if run.generation == 1 else f"{run.name} g{run.generation}"

    @property
    def curve_id(self) -> str:
        """The id of the curve, the same for all starts of this generation.

        Only a start from the beginning with a changed job begins another curve. The time of the first claim
        is a part of the id: if the folder of a run is deleted, a new run at the same place is another curve.
        """
        location, claim = self.run.store.location, self._first_attempt().claim.read()
        first_s = claim.time if claim is not None else 0
        identity = f"{location.endpoint or ''} {self.run.uri} {first_s}"
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    def _first_attempt(self) -> Attempt:
        for number in range(self.attempt.n, 1, -1):
            changes = self.run.attempt(number).changes.read()
            if changes is not None and changes.starts_over:
                return self.run.attempt(number)
        return self.run.attempt(1)


class Logger(Protocol):
    """Writes a curve; each method may block, and raise any exception of the logger's package."""

    place: str
    """Where the curve is, for people."""

    def write(self, points: Sequence[Point]) -> None:
        """Write these points, by increasing step. After an exception it is not called again."""

    def close(self, *, failed: bool) -> None:
        """Write what is left; `failed`: the training ended with an exception."""
