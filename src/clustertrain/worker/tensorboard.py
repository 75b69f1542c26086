"""The curve for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Board:
    """Writes TensorBoard's files of one start of the worker group, from the first value on: the import takes
    most of a second."""

    def __init__(
        self, folder: Path, first_step: int, hyperparameters: Mapping[str, str | int | float]
    ) -> None:
        """
        Args:
            folder: the same for all starts of a run; each start adds a file.
            first_step: the first step of this start. TensorBoard drops the values of earlier starts from this
                step on, because their steps are repeated.
            hyperparameters: for TensorBoard's tab HParams.
        """
        self._folder, self._first_step, self._hyperparameters = folder, first_step, hyperparameters
        self._writer: Any = None

    def add(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Add the values of a step; kind: "train" or "eval"."""
        if self._writer is None:
            self._writer = self._open()
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def _open(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        writer: Any = SummaryWriter(str(self._folder), purge_step=self._first_step)
        # `writer.add_hparams` would make a second curve, in a folder of its own. Of the three summaries only
        # the values are written: TensorBoard finds the columns of its table from the values of all runs.
        _, values, _ = hparams(dict(self._hyperparameters), {})  # type: ignore[no-untyped-call]  # untyped
        writer.file_writer.add_summary(values)
        return writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
