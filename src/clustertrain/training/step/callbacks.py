"""The calls of a task's callbacks. An exception in one keeps its type, and gets a note with its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from clustertrain.training.data.sampling import Position
from clustertrain.training.step.optimization import Optimization
from clustertrain.training.task import Task


def call_after_step(
    task: Task, position: Position, loss: torch.Tensor | float, optimization: Optimization
) -> None:
    """Call `on_step`, and `on_epoch` if the step was the last one of an epoch.

    Args:
        position: after the step.
        loss: this rank's mean loss over its samples of the step, a scalar on its device.
    """
    metrics = {"loss": loss, "lr": optimization.lr}
    if optimization.grad_norm is not None:
        metrics["grad_norm"] = optimization.grad_norm
    _call(task, "on_step", position.step, position.step, metrics)
    if position.offset == 0:
        _call(task, "on_epoch", position.step, position.epoch)


def call_after_evaluation(task: Task, step: int, metrics: Mapping[str, float]) -> None:
    """Call `on_eval`, with a copy of `metrics`, which the callback may change."""
    _call(task, "on_eval", step, step, dict(metrics))


def _call(task: Task, callback: str, step: int, *args: Any) -> None:
    try:
        getattr(task, callback)(*args)
    except Exception as error:
        error.add_note(f"Raised in {type(task).__name__}.{callback}() after step {step}.")
        raise
