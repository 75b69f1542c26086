"""Checkpoints in a plain folder, as the functions of checkpoints/ take them."""

from pathlib import Path

from clustertrain.checkpoints.manifest import Shelf
from clustertrain.storage import PosixStore


def shelf_at(folder: Path) -> Shelf:
    """The shelf whose checkpoints lie in this folder."""
    return Shelf(PosixStore(folder.parent), folder.name)
