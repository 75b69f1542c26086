"""The curve for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Board:
    """Writes TensorBoard's files, from the first value on: the import takes most of a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def add(self, kind: str, step: int, values: dict[str, float]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # Later steps that a killed start of the group wrote are superseded.
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
