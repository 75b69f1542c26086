"""How long a training loop waits for a save: clustertrain's, in the background, against those of torch.

    python benchmarks/saving.py [--megabytes 400] [--rounds 6] [--folder .] [--json FILE]

All sides save the same state, weights and the two moments of Adam, to the same disk, alternately in one
process, between steps of the same length:

- torch.save: `torch.save` of the whole state to a temporary file, flush, fsync, rename, fsync of the folder.
  The loop waits for all of it, as in a script that saves in its own loop and needs the file after a crash.
- dcp.async_save: torch's own save in the background, with its defaults. It copies the state to new memory,
  and a thread writes the files and fsyncs them. It has no checksums, and renames no folder. `kept stager` is
  the same with a stager that the script makes once: its memory is used again, as clustertrain's is.
- the copy alone: `Tensor.copy_` of each tensor into memory that is there, with torch's own threads.
- clustertrain: `Saver.save`, as in a worker. The loop waits only for the copy to host memory; in the
  background two files are written and hashed (sha256), each fsynced, then the manifest, fsynced; the folder
  is renamed and its parent fsynced. The steps are long enough for a save to end before the next is due;
  otherwise a save would wait for the previous one.

The first save of each side allocates the memory for its copy, and does not count.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from comparison.figures import ASYNC_SAVE, COPY, KEPT_STAGER, TORCH_SAVE
from comparison.figures import SAVE as OURS
from comparison.turns import by_turns, parser_of, show, write
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.utils._pytree import tree_leaves

from clustertrain.checkpoints.manifest import CheckpointFolder
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.save import Saver
from clustertrain.checkpoints.write import Writer
from clustertrain.storage import PosixStore
from clustertrain.training.ranks.host import SaveProgress


def make_state(megabytes: int) -> dict[str, Any]:
    """float32 weights in layers of 4 MiB, and the two moments of Adam of each: a third of the size each."""
    layers = max(1, megabytes // 3 // 4)
    weights = {f"layers.{i}.weight": torch.randn(1024, 1024) for i in range(layers)}
    moments = {
        i: {"exp_avg": torch.randn_like(w), "exp_avg_sq": torch.rand_like(w), "step": torch.tensor(1.0)}
        for i, w in enumerate(weights.values())
    }
    return {"model": weights, "optimizer": {"state": moments, "param_groups": [{"lr": 1e-3}]}}


def torch_save(state: dict[str, Any], folder: Path) -> float:
    """Seconds for a save that is on disk under its name when it returns."""
    started = time.perf_counter()
    with (folder / "state.tmp").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    (folder / "state.tmp").rename(folder / "state.pt")
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    return time.perf_counter() - started


class Copy:
    """The tensors of a state, and memory of the same size."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
        self._copies = [tensor.clone() for tensor in self._tensors]

    def seconds(self) -> float:
        started = time.perf_counter()
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            copy.copy_(tensor)
        return time.perf_counter() - started


class AsyncSave:
    """dcp.async_save, and the save that is still being written."""

    def __init__(self, folder: Path, stager: DefaultStager | None = None) -> None:
        self._folder, self._stager, self._writing = folder, stager, None

    def save(self, state: dict[str, Any]) -> float:
        """Seconds that the loop waits."""
        started = time.perf_counter()
        self._writing = dcp.async_save(
            state, checkpoint_id=self._folder, no_dist=True, async_stager=self._stager
        )
        return time.perf_counter() - started

    def finish(self) -> None:
        self._writing.result()


class Ours:
    """clustertrain's saver."""

    def __init__(self, folder: Path) -> None:
        shelf = CheckpointFolder(PosixStore(folder), "checkpoints")
        writer = Writer(shelf, 1, 0, "0" * 64, {}, Retention(keep_last=1), lambda: True)
        self._saver = Saver(writer, background=True, on_saved=lambda **fields: None, on_failed=sys.exit)
        self._step = 0

    def save(self, state: dict[str, Any]) -> float:
        """Seconds that the loop waits."""
        self._step += 1
        progress = SaveProgress(self._step, 0, samples_seen=0, world_size=1, metrics={}, reason="steps")
        started = time.perf_counter()
        self._saver.save(state, progress)
        return time.perf_counter() - started

    def finish(self) -> None:
        self._saver.finish()


def train(state: dict[str, Any], seconds: float) -> None:
    """Steps that change the weights, for about so long."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for weight in state["model"].values():
            weight.mul_(0.999)


def main() -> None:
    parser = parser_of(__doc__, rounds=6)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    torch.manual_seed(0)
    state = make_state(options.megabytes)
    with tempfile.TemporaryDirectory(prefix="saving-", dir=options.folder) as name:
        found = measure(state, Path(name), options.rounds)
    write(options.json, found)
    show("the loop waits for", found, OURS)


def measure(state: dict[str, Any], folder: Path, rounds: int) -> dict[str, list[float]]:
    """The seconds of each side. Its first save allocates memory, and does not count."""
    kept = DefaultStager(StagingOptions(False, True, False, False))  # shared memory; the rest needs a GPU
    savers = {
        ASYNC_SAVE: AsyncSave(folder / "dcp"),
        KEPT_STAGER: AsyncSave(folder / "kept", kept),
        OURS: Ours(folder),
    }
    copy = Copy(state)

    def save(_number: int, side: str) -> float:
        if saver := savers.get(side):
            seconds = saver.save(state)
        else:
            seconds = copy.seconds() if side == COPY else torch_save(state, folder)
        train(state, 1.0)
        if saver:
            saver.finish()
        return seconds

    return by_turns((TORCH_SAVE, *savers, COPY), rounds, save)


if __name__ == "__main__":
    main()
