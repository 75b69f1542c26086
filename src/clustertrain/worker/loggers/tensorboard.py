"""The curve for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from clustertrain.worker.loggers.logger import Point, Subject


class Board:
    """Writes one file of TensorBoard. The folder is the same for all starts of a run; each adds a file."""

    def __init__(self, subject: Subject) -> None:
        self.place = ""  # status shows the command that opens TensorBoard
        # It drops the values of earlier files from the first step on, because their steps are repeated.
        writer: Any = SummaryWriter(str(subject.attempt.tensorboard), purge_step=subject.first_step)
        self._writer = writer
        # `writer.add_hparams` would make a second curve, in a folder of its own. Of the three summaries only
        # the values are written: TensorBoard finds the columns of its table from the values of all runs.
        _, values, _ = hparams(dict(subject.hyperparameters), {})  # type: ignore[no-untyped-call]  # untyped
        writer.file_writer.add_summary(values)

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.step, walltime=point.time_s)
            for name, image in point.images.items():
                self._writer.add_image(name, image, point.step, walltime=point.time_s)

    def close(self, *, failed: bool) -> None:
        self._writer.close()


open_logger = Board
