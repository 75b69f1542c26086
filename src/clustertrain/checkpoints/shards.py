"""Checkpoints of a model that is divided among ranks (FSDP): each rank writes its part of every tensor.

The parts are safetensors files in the format of torch.distributed.checkpoint, whose planner reads them again
for any number of ranks. In model.pt and training.pt a divided tensor is one of the meta device; in the files
its name is its path in the state, such as `model.layers.0.weight`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor, Replicate

from clustertrain.checkpoints.manifest import part_files
from clustertrain.checkpoints.safetensors_file import write_safetensors
from clustertrain.checkpoints.save import Saver
from clustertrain.checkpoints.write import Writer
from clustertrain.errors import StorageError
from clustertrain.training.ranks.dtensors import local, map_state
from clustertrain.training.values import State

_OFFSETS = "DCP_SHARDING_INFO"  # the key of torch.distributed.checkpoint for the place of each part


class ShardSaver(Saver):
    """One rank's side of a save in parts; every rank has one, and calls it for the same saves."""

    def _held(self, state: State) -> dict[str, Any]:
        parts: dict[str, torch.Tensor] = {}
        offsets: dict[str, list[int]] = {}

        def part(path: str, tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, DTensor):
                return tensor
            if any(placement.is_partial() for placement in tensor.placements):  # not summed up yet
                tensor = tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)
            if self._is_writer(tensor) and tensor.to_local().numel():
                (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]  # torch's own lacks types
                parts[path], offsets[path] = tensor.to_local(), list(chunk.offsets)
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

        rest = map_state(state, part)
        is_first = isinstance(self._writer, Writer)
        return {**(rest if is_first else {}), "parts": parts, "offsets": offsets}

    def _is_writer(self, tensor: DTensor) -> bool:
        """Return whether this rank writes its part: of ranks with the same part, the first one does."""
        coordinate = tensor.device_mesh.get_coordinate() or ()
        return all(c == 0 for c, p in zip(coordinate, tensor.placements, strict=True) if p.is_replicate())

    def _files(self, held: dict[str, Any]) -> dict[str, Callable[[Any], None]]:
        files: dict[str, Callable[[Any], None]] = {}
        of_model, of_optimizer = part_files(dist.get_rank(), dist.get_world_size())
        for file, is_model in ((of_model, True), (of_optimizer, False)):
            parts = {k: t for k, t in held["parts"].items() if k.startswith("model.") == is_model}
            files[file] = partial(self._write_parts, parts, held["offsets"])
        rest = {key: value for key, value in held.items() if key not in ("parts", "offsets")}
        return files | (super()._files(rest) if rest else {})

    def _write_parts(
        self, parts: Mapping[str, torch.Tensor], offsets: Mapping[str, list[int]], file: Any
    ) -> None:
        places = {key: {"saved_offsets": offsets[key]} for key in parts}
        metadata = {"format": "pt", "DCP_VERSION": "1.0", _OFFSETS: json.dumps(places)}
        self._files_in_write.append(file)
        write_safetensors(file, parts, metadata)


class MemoryShardSaver(ShardSaver):
    """The same for the memory of a node, whose checkpoint has all that its ranks resume from."""

    def _is_writer(self, tensor: DTensor) -> bool:
        return True


def fill_own(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Read this rank's own parts of divided tensors into the given ones, by their path.

    The checkpoint is in the memory of this rank's node.
    """
    with torch.no_grad():
        for name in part_files(dist.get_rank(), dist.get_world_size()):
            for path, part in load_file(folder / name).items():
                local(tensors[path]).copy_(part)


def fill(folder: Path, tensors: dict[str, torch.Tensor], files: Iterable[str]) -> None:
    """Read divided tensors of a checkpoint into those given, by their path; a DTensor gets its own part only.

    Args:
        files: the files of its manifest.

    Raises:
        StorageError: a file is missing, or a tensor is in no file or has another shape.
    """
    for file in files:
        if not (folder / file).exists():
            raise StorageError(
                f"{folder / file} is missing: the manifest of the checkpoint lists it, and every part of a "
                "divided model is needed.\n"
                "Restore the file, or move the folder away: the run then resumes from the checkpoint before."
            )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that ranks read without asking each other
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise StorageError(
            f"The divided tensors of {folder} cannot be read: {error}\n"
            "Move the folder away: the run then resumes from the checkpoint before."
        ) from error
