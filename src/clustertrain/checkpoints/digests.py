"""The tensors and numbers in the files of a training, each as a short text. Equal texts are equal bits."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from clustertrain.checkpoints.manifest import MODEL_FILE, CheckpointFolder, names
from clustertrain.checkpoints.read import fetch_checkpoint
from clustertrain.training.ranks.rng import rng_by_name

Digests = dict[str, str]

_TORCH = {".pt", ".pth", ".ckpt", ".bin", ".tar"}
_NUMPY: list[Any] = [
    np.ndarray,
    np.dtype,
    np.zeros(1).__reduce__()[0],
    *(type(np.dtype(t)) for t in ("u4", "i8", "f8")),
]


def of_checkpoints(shelf: CheckpointFolder) -> dict[str, Digests]:
    """Return the content of each checkpoint of clustertrain, by its step.

    If a step has two checkpoints, the content is from the newest writer.
    """
    found = {}
    for name in names(shelf):
        with tempfile.TemporaryDirectory(prefix="clustertrain-") as temporary:
            files = sorted(fetch_checkpoint(shelf, name, Path(temporary)).path.iterdir())
            found[f"step {name.step}"] = {k: v for file in files for k, v in _of_file(file).items()}
    return found


def of_files(folder: Path) -> dict[str, Digests]:
    """Return the content of each checkpoint file of a script, by its path in the folder.

    It has nothing of a file that cannot be loaded. Counters are left out: a framework counts its own starts.
    """
    found = {}
    files = (path for path in folder.rglob("*") if path.suffix in {*_TORCH, ".safetensors"})
    for file in sorted(path for path in files if path.is_file()):  # Lightning's .ckpt may be a folder
        content = {k: v for k, v in _of_file(file).items() if not v.startswith("int ")}
        found[str(file.relative_to(folder))] = content
    return found


def _of_file(file: Path) -> Digests:
    if file.suffix == ".json":
        return {}
    try:
        return dict(_leaves(_loaded(file), "model" if file.name == MODEL_FILE else ""))
    except Exception:  # noqa: BLE001  another program's file, perhaps cut by a kill, raises anything
        return {}


def _loaded(file: Path) -> Any:
    if file.suffix == ".safetensors":
        return load_file(file)
    with torch.serialization.safe_globals(_NUMPY):
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    if isinstance(state, dict) and "rng_of_ranks" in state:
        state["rng_of_ranks"] = [rng_by_name(of_rank) for of_rank in state["rng_of_ranks"]]
    return state


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of keys of each tensor and number, and a text that stands for its content.

    Texts are left out: they contain paths and times.
    """
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, np.ndarray):
        yield from _leaves(torch.from_numpy(value.copy()), path)
    elif isinstance(value, torch.Tensor):
        what = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        if value.is_meta:  # divided among ranks: its parts are in files of their own
            yield path, what
        else:
            data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            yield path, f"{what} {value.item() if value.numel() == 1 else _digest(data)}"
    elif isinstance(value, int | float):
        yield path, f"{'int' if isinstance(value, int) else 'float'} {value!r}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
