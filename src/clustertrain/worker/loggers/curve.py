"""All loggers of a job: the curve of rank 0, written to each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

import torch

from clustertrain.node.installed import how_to_install_loggers
from clustertrain.worker.loggers.background import Background
from clustertrain.worker.loggers.logger import Logger, Point, Subject

END_S = 10.0
"""How long the end of a run waits for its loggers: less than the usual grace period of 30 s."""


@dataclass
class LoggedCurve:
    """The loggers start with the first point: their imports take seconds, and a script may have no points."""

    names: Sequence[str]
    subject: Subject
    note: Callable[[str, str], None]
    _loggers: list[Background] | None = None

    def begin(self, step: int) -> None:
        """Set the first step of a script, which finds its checkpoint itself; before the first point."""
        self.subject = replace(self.subject, first_step=step)

    def add(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Add the values of a step; kind: "train" or "eval"."""
        self._add(Point(step, time.time(), {f"{kind}/{name}": value for name, value in values.items()}))

    def add_images(self, step: int, images: Mapping[str, torch.Tensor]) -> None:
        """Add the images of an evaluation, uint8 (channels, height, width) on the CPU."""
        self._add(Point(step, time.time(), {}, {f"eval/{name}": image for name, image in images.items()}))

    def _add(self, point: Point) -> None:
        if self._loggers is None:
            self._loggers = [logger for name in self.names for logger in self._started(name)]
        for logger in self._loggers:
            logger.add(point)

    def _started(self, name: str) -> list[Background]:
        """Start the logger; return an empty list if it cannot be imported.

        The import is here and not in the thread, because a fork of this process, for a data loader, must not
        happen in the middle of it.
        """
        try:
            module = import_module(f"clustertrain.worker.loggers.{name}")
        except Exception as error:  # noqa: BLE001  a broken package raises anything, and must not end the training
            remedy = f"; {how_to_install_loggers([name])}" if isinstance(error, ImportError) else ""
            self.note("warning", f"{name} is not written: {error}{remedy}")
            return []

        def opened(step: int) -> Logger:
            logger: Logger = module.open_logger(replace(self.subject, first_step=step))
            return logger

        return [Background(name, opened, self.subject.first_step, note=self.note)]

    def close(self, *, failed: bool, within_s: float = END_S) -> None:
        """Write what is left, for `within_s` seconds at most."""
        loggers, ends_s = self._loggers or (), time.monotonic() + within_s
        for logger in loggers:
            logger.end(failed=failed)
        for logger in loggers:
            logger.finish(ends_s)
