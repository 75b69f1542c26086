"""The curve as a run of Weights & Biases: one id for all starts of a generation.

Server, project and mode are given by W&B's own variables. Its process `wandb-core` sends the values, and
keeps what a server that does not answer has not taken.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

# No reports of errors to W&B, unless the user sets it. W&B reads the variable when it is imported.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import torch
import wandb

from clustertrain.worker.loggers.logger import Point, Subject

FINISH_S = 8.0  # less than curve.py grants: the process then ends in order, and what is left stays on disk


class WandbRun:
    """Writes to one run of W&B.

    W&B drops a step that is not after those that it has, with a warning each; the steps that a restart
    repeats are therefore left out.
    """

    def __init__(self, subject: Subject) -> None:
        folder = subject.run.local_path(subject.run.key)
        folder.mkdir(parents=True, exist_ok=True)
        given = os.environ
        settings = wandb.Settings(finish_timeout=FINISH_S)
        if "WANDB_CONSOLE" not in given:
            settings.console = "off"  # the log of the rank has the output
        self._run: Any = wandb.init(
            id=subject.curve_id,
            resume="allow",
            name=given.get("WANDB_NAME") or subject.label,
            dir=given.get("WANDB_DIR") or folder,
            config=dict(subject.hyperparameters),
            allow_val_change=True,  # a run may continue with a changed job
            settings=settings,
        )
        self.place = self._run.url or self._run.dir
        self._next_step = int(self._run.starting_step)

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            if point.step >= self._next_step:
                images = {name: wandb.Image(_rows(image)) for name, image in point.images.items()}
                self._run.log({**point.values, **images}, step=point.step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _rows(image: torch.Tensor) -> Any:
    """Return the array that W&B takes: (height, width, channels)."""
    return image.permute(1, 2, 0).numpy()


open_logger = WandbRun
