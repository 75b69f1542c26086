"""Exports a checkpoint's weights as safetensors, with a JSON file about their origin."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from clustertrain.checkpoints.manifest import MODEL_FILE, Shelf
from clustertrain.checkpoints.read import VerifiedCheckpoint, fetch_checkpoint
from clustertrain.errors import JobError, StorageError


def export(shelf: Shelf, name: str, to: Path) -> tuple[Path, Path]:
    """Write `<to>` (safetensors) and `<to>` with the suffix .json; returns both paths.

    The names are those of the model's state_dict. Tensors that share memory (tied weights) are written once
    for each name: safetensors does not support sharing. The modes of the files follow the umask.

    Raises:
        CheckpointDamaged: the manifest or the model file does not verify.
        JobError: it contains no model, an entry is not a tensor, or a file exists already.
        StorageError: the files cannot be written.
    """
    page = refuse_to_overwrite(to)
    with tempfile.TemporaryDirectory(prefix="clustertrain-") as temporary:
        checkpoint = fetch_checkpoint(shelf, name, Path(temporary) / "brought", (MODEL_FILE,))
        weights = _weights(checkpoint)
    provenance = {"checkpoint": str(checkpoint.name), **asdict(checkpoint.manifest)}
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        save_file(weights, to, metadata={"format": "pt"})
        page.write_text(json.dumps(provenance, indent=1, sort_keys=True) + "\n")
        to.chmod(page.stat().st_mode)  # save_file ignores the umask: only the owner could read its file
    except (OSError, SafetensorError) as error:
        for path in (to, page):
            with suppress(OSError):
                path.unlink()
        raise StorageError(f"{to} cannot be written: {error}\nUse another path.") from error
    return to, page


def refuse_to_overwrite(to: Path) -> Path:
    """Returns the path of the JSON file beside `to`.

    Raises:
        JobError: one of the two exists.
    """
    page = to.with_suffix(".json")
    if there := [path for path in (to, page) if path.exists()]:
        raise JobError(f"{there[0]} exists already, and export overwrites nothing.\nUse another file name.")
    return page


def _weights(checkpoint: VerifiedCheckpoint) -> dict[str, torch.Tensor]:
    file = checkpoint.path / MODEL_FILE
    if not file.exists():
        raise JobError(
            f"Checkpoint {checkpoint.name} contains no {MODEL_FILE}.\n"
            "A function has to save its model as state={'model': …}."
        )
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    odd = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise JobError(
            f"{MODEL_FILE} of checkpoint {checkpoint.name} contains {odd[0]!r}, "
            f"which is {type(state[odd[0]]).__name__}, not a tensor.\n"
            "safetensors can store only tensors."
        )
    return {name: value.contiguous().clone() for name, value in state.items()}
