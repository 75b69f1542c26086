"""Exports a checkpoint's weights as safetensors, with a JSON file about their origin."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from clustertrain.checkpoints.manifest import MODEL_FILE, CheckpointFolder, read_manifest
from clustertrain.checkpoints.read import VerifiedCheckpoint, fetch_checkpoint
from clustertrain.errors import JobError, StorageError
from clustertrain.node.units import shortened

FILE_BYTES = 5 << 30  # Hugging Face's limit for one file


def export(shelf: CheckpointFolder, name: str, to: Path) -> tuple[Path, Path]:
    """Write `<to>` (safetensors) and `<to>` with the suffix .json; returns both paths.

    The names are those of the model's state_dict. Tensors that share memory (tied weights) are written once
    for each name: safetensors does not support sharing. The modes of the files follow the umask.

    A divided model (FSDP) that is larger than `FILE_BYTES` becomes several files in the layout of Hugging
    Face: <stem>-00001-of-00003.safetensors and so on, and <stem>.safetensors.index.json, which is returned
    instead of `<to>`. At most one file is in memory at a time.

    Raises:
        CheckpointDamaged: the manifest or a file of the model does not verify.
        JobError: it contains no model, an entry is not a tensor that safetensors can store, or a file exists
            already.
        StorageError: the files cannot be written.
    """
    page = refuse_to_overwrite(to)
    with _model_of(shelf, name) as (checkpoint, weights):
        provenance = {"checkpoint": str(checkpoint.name), **asdict(checkpoint.manifest)}
        written: list[Path] = []
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            exported = _write(checkpoint, weights, to, written)
            written.append(page)
            page.write_text(json.dumps(provenance, indent=1, sort_keys=True) + "\n")
            for path in written:  # save_file ignores the umask: only the owner could read its file
                path.chmod(page.stat().st_mode)
        except BaseException as error:
            for path in written:
                with suppress(OSError):
                    path.unlink()
            if isinstance(error, OSError | SafetensorError):
                raise StorageError(f"{to} cannot be written: {error}\nUse another path.") from error
            if isinstance(error, RuntimeError | TypeError | LookupError | ValueError):
                raise _not_exportable(checkpoint, f"cannot be stored as safetensors: {error}") from error
            raise
    return exported, page


def load_weights(shelf: CheckpointFolder, name: str) -> dict[str, torch.Tensor]:
    """Load the weights of a checkpoint to the CPU, named as in the model's state_dict; raises as `export`."""
    with _model_of(shelf, name) as (checkpoint, weights):
        return _read(checkpoint, weights)


@contextmanager
def _model_of(
    shelf: CheckpointFolder, name: str
) -> Iterator[tuple[VerifiedCheckpoint, dict[str, torch.Tensor]]]:
    """Yield a checkpoint whose model is verified, and its weights, the divided ones on the meta device."""
    with tempfile.TemporaryDirectory(prefix="clustertrain-") as temporary:
        files = read_manifest(shelf, name).model_files
        checkpoint = fetch_checkpoint(shelf, name, Path(temporary) / "brought", files)
        yield checkpoint, _weights(checkpoint)


def _write(
    checkpoint: VerifiedCheckpoint, weights: dict[str, torch.Tensor], to: Path, written: list[Path]
) -> Path:
    """Write the weights in files of at most FILE_BYTES; returns the one to load them by.

    Args:
        weights: those that are divided among files of the checkpoint are on the meta device.
        written: gets the path of each file before it is created.

    Raises:
        JobError: one of the files exists.
    """
    parts = _parts(weights)
    if len(parts) == 1:
        written.append(to)
        save_file(_read(checkpoint, parts[0]), to, metadata={"format": "pt"})
        return to
    index = to.with_suffix(".safetensors.index.json")
    names = [f"{to.stem}-{i:05d}-of-{len(parts):05d}.safetensors" for i in range(1, len(parts) + 1)]
    paths = [to.with_name(name) for name in names]
    _refuse([*paths, index])
    for path, part in zip(paths, parts, strict=True):
        written.append(path)
        save_file(_read(checkpoint, part), path, metadata={"format": "pt"})
    files = {name: path.name for path, part in zip(paths, parts, strict=True) for name in part}
    total_bytes = sum(tensor.nbytes for tensor in weights.values())
    written.append(index)
    content = {"metadata": {"total_size": total_bytes}, "weight_map": files}
    index.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return index


def _parts(weights: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Divide the weights among files; return a single part if no weight is divided among ranks."""
    if not any(tensor.is_meta for tensor in weights.values()):
        return [weights]
    parts: list[dict[str, torch.Tensor]] = [{}]
    size_bytes = 0
    for name, tensor in weights.items():
        if parts[-1] and size_bytes + tensor.nbytes > FILE_BYTES:
            parts.append({})
            size_bytes = 0
        parts[-1][name] = tensor
        size_bytes += tensor.nbytes
    return parts


def _read(checkpoint: VerifiedCheckpoint, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Read some of the weights, each of them whole."""
    divided = {name: torch.empty_like(w, device="cpu") for name, w in weights.items() if w.is_meta}
    if divided:
        from clustertrain.checkpoints.shards import fill  # it imports much of torch.distributed

        of_paths = {f"model.{name}": tensor for name, tensor in divided.items()}
        fill(checkpoint.path, of_paths, checkpoint.manifest.model_files)
    return {name: divided[name] if w.is_meta else w.contiguous().clone() for name, w in weights.items()}


def refuse_to_overwrite(to: Path) -> Path:
    """Return the path of the JSON file beside `to`.

    Raises:
        JobError: one of the two exists.
    """
    page = to.with_suffix(".json")
    _refuse([to, page])
    return page


def _refuse(paths: list[Path]) -> None:
    if there := [path for path in paths if path.exists()]:
        raise JobError(f"{there[0]} exists already, and export overwrites nothing.\nUse another file name.")


def _weights(checkpoint: VerifiedCheckpoint) -> dict[str, torch.Tensor]:
    file = checkpoint.path / MODEL_FILE
    if not file.exists():
        raise JobError(
            f"Checkpoint {checkpoint.name} contains no {MODEL_FILE}.\n"
            "A function has to save its model as state={'model': …}."
        )
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # another program's file raises anything
        reason = f"{type(error).__name__}: {error}".partition(". ")[0]
        raise _not_exportable(checkpoint, f"cannot be loaded: {reason}") from error
    if not isinstance(state, dict):
        raise _not_exportable(checkpoint, f"contains a {type(state).__name__}, not a dict of tensors")
    odd = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if odd:
        what = f"contains {odd[0]!r}, which is {type(state[odd[0]]).__name__}, not a tensor"
        raise _not_exportable(checkpoint, what)
    return state


def _not_exportable(checkpoint: VerifiedCheckpoint, what: str) -> JobError:
    return JobError(
        f"{MODEL_FILE} of checkpoint {checkpoint.name} {shortened(what.splitlines()[0], 200)}.\n"
        "safetensors stores dense tensors, each with a name: save the model as "
        "state={'model': model.state_dict()}."
    )
