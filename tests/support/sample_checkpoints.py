"""Checkpoints as the functions of checkpoints/ take them, and such as a run commits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from clustertrain.checkpoints.manifest import CheckpointFolder
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.write import Writer
from clustertrain.storage import PosixStore
from clustertrain.training.ranks.host import SaveProgress


def shelf_at(folder: Path) -> CheckpointFolder:
    """The shelf whose checkpoints lie in this folder."""
    return CheckpointFolder(PosixStore(folder.parent), folder.name)


def commit(
    shelf: CheckpointFolder,
    step: int,
    write: Callable[[BinaryIO], object] = lambda file: file.write(b"weights"),
    *,
    workers: int = 1,
) -> None:
    """Commit a checkpoint whose model.pt has what `write` writes into a file."""
    _writer(shelf).commit({"model.pt": write}, SaveProgress(step, 0, 8, workers, {}, "steps"))


def save(shelf: CheckpointFolder, step: int, state: dict[str, Any], **metrics: float) -> None:
    """Save a state of two workers, after eight samples in each step."""
    from clustertrain.checkpoints.save import Saver  # it imports torch

    saver = Saver(_writer(shelf), background=False, on_saved=lambda **fields: None, on_failed=pytest.fail)
    saver.save(state, SaveProgress(step, 1, step * 8, 2, metrics, "steps"))
    saver.finish()


def _writer(shelf: CheckpointFolder) -> Writer:
    return Writer(shelf, 1, 0, "0" * 64, {"torch": "2"}, Retention(keep_last=5), lambda: True)
