"""Which checkpoints are kept, and which one is the best: one rule for the writer and for the commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from clustertrain.checkpoints.manifest import (
    CheckpointDamaged,
    CheckpointFolder,
    CheckpointName,
    CheckpointUnreadable,
    UnknownFormat,
    names,
    read_manifest,
)

T = TypeVar("T", bound=Any)


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept: the newest `keep_last`, and the best by a metric of the manifest."""

    keep_last: int = 3
    best_metric: str | None = None
    best_mode: str = "max"

    def doomed(self, shelf: CheckpointFolder, just_committed: CheckpointName) -> list[CheckpointName]:
        """Return the names to remove; the checkpoint that was just committed is always kept."""
        everything = names(shelf)
        kept = set(everything[-self.keep_last :]) | {just_committed}
        # One that NFS does not show now may be the best.
        if (best := self.best(shelf, everything, on_unreadable=kept.add)) is not None:
            kept.add(best[1])
        return [name for name in everything if name not in kept]

    def best(
        self,
        shelf: CheckpointFolder,
        everything: Iterable[CheckpointName] | None = None,
        on_unreadable: Callable[[CheckpointName], None] = lambda name: None,
    ) -> tuple[float, CheckpointName] | None:
        """Return the best checkpoint and its value of the metric.

        None without `best_metric`, or if no checkpoint has a finite value of it.

        Args:
            everything: the names to choose from, or None for all.
            on_unreadable: called with each that the file system does not read.

        Raises:
            StorageError: an S3 server does not answer, or refuses.
        """
        if self.best_metric is None:
            return None
        scored = []
        for name in names(shelf) if everything is None else everything:
            try:
                value = read_manifest(shelf, name).metrics.get(self.best_metric)
            except CheckpointUnreadable:
                on_unreadable(name)
                continue
            except (CheckpointDamaged, UnknownFormat):
                continue  # it cannot be the best; only its age decides whether it is kept
            if value is not None:
                scored.append((value, name))
        return best_of(scored, self.best_mode)


def best_of(scored: Iterable[tuple[float, T]], mode: str) -> tuple[float, T] | None:
    """Return the pair with the best value, `mode` "max" or "min", or None if no pair is left.

    Of equal values it is the pair with the greater second item. Values that are not finite are skipped,
    because NaN cannot be compared.
    """
    sign = 1 if mode == "max" else -1
    finite = (pair for pair in scored if math.isfinite(pair[0]))
    return max(finite, key=lambda pair: (sign * pair[0], pair[1]), default=None)
