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

The first save allocates the memory for the copy and stands in a row of its own. The copy's memory is what
resident memory grows by in this save, read in /proc/self/status; the peak includes what writing takes beside
it. `--json` writes the seconds of each side.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.utils._pytree import tree_leaves

from clustertrain.checkpoints.manifest import Shelf
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.save import Saver
from clustertrain.checkpoints.write import Writer
from clustertrain.storage import PosixStore
from clustertrain.training.ranks.host import SaveProgress

TORCH_SAVE, OURS, COPY = "torch.save, fsynced", "clustertrain", "the copy alone"
ASYNC_SAVE, KEPT_STAGER = "dcp.async_save", "dcp.async_save, kept stager"


def make_state(megabytes: int) -> dict[str, Any]:
    """float32 weights in layers of 4 MiB, and the two moments of Adam of each: a third of the size each."""
    layers = max(1, megabytes // 3 // 4)
    weights = {f"layers.{i}.weight": torch.randn(1024, 1024) for i in range(layers)}
    moments = {
        i: {"exp_avg": torch.randn_like(w), "exp_avg_sq": torch.rand_like(w), "step": torch.tensor(1.0)}
        for i, w in enumerate(weights.values())
    }
    return {"model": weights, "optimizer": {"state": moments, "param_groups": [{"lr": 1e-3}]}}


def size_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(size_bytes(part) for part in parts)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


class Peak:
    """The most resident memory while it watches, looked at every 5 ms."""

    def __enter__(self) -> Peak:
        self.peak_bytes, self._done = resident_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.peak_bytes = max(self.peak_bytes, resident_bytes())


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
    """clustertrain's saver, and how long its writing took."""

    def __init__(self, folder: Path) -> None:
        self.written_s: list[float] = []
        shelf = Shelf(PosixStore(folder), "checkpoints")
        writer = Writer(shelf, 1, 0, "0" * 64, {}, Retention(keep_last=1), lambda: True)
        self._saver = Saver(writer, background=True, on_saved=self._saved, on_failed=self._failed)
        self._step = 0

    def _saved(self, **fields: Any) -> None:
        self.written_s.append(fields["write_s"])

    def _failed(self, text: str) -> None:
        raise SystemExit(text)

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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    state = make_state(options.megabytes)
    folder = Path(tempfile.mkdtemp(prefix="saving-", dir=options.folder))
    try:
        found = measure(state, folder, options.rounds)
    finally:
        shutil.rmtree(folder)
    if options.json:
        options.json.write_text(json.dumps({side: seconds[1:] for side, seconds in found.items()}))


def measure(state: dict[str, Any], folder: Path, rounds: int) -> dict[str, list[float]]:
    """Prints the table; returns the seconds of each side, the first one included."""
    ours = Ours(folder)
    kept = DefaultStager(StagingOptions(False, True, False, False))  # shared memory; the rest needs a GPU
    theirs = {ASYNC_SAVE: AsyncSave(folder / "dcp"), KEPT_STAGER: AsyncSave(folder / "kept", kept)}
    found: dict[str, list[float]] = {side: [] for side in (TORCH_SAVE, *theirs, COPY, OURS)}
    torch_save(state, folder)  # the disk's and the allocator's first time belongs to no side
    before_bytes = resident_bytes()
    with Peak() as peak:
        found[OURS].append(ours.save(state))
        train(state, 1.0)
        ours.finish()
    copy: Copy | None = None  # made after the peak of the first save was read
    for number in range(rounds + 1):
        if number:
            found[OURS].append(ours.save(state))
            train(state, 1.0)
            ours.finish()
        found[TORCH_SAVE].append(torch_save(state, folder))
        train(state, 1.0)
        for side, saver in theirs.items():
            found[side].append(saver.save(state))
            train(state, 1.0)
            saver.finish()
        copy = copy or Copy(state)
        found[COPY].append(copy.seconds())
        train(state, 1.0)
    print(
        f"state: {size_bytes(state) / 1e6:.0f} MB, {rounds} rounds after the first, torch {torch.__version__}"
    )
    print(f"{'the loop waits for':34}{'median':>10}{'min':>10}{'max':>10}")
    for side in (TORCH_SAVE, *theirs, COPY):
        show(side, found[side][1:])
    show("clustertrain, first save", found[OURS][:1])
    show("clustertrain, later saves", found[OURS][1:])
    show("  its writing in the background", ours.written_s[1:])
    for side in (TORCH_SAVE, *theirs):
        median_s = statistics.median(found[side][1:])
        first, later = found[OURS][0] / median_s, statistics.median(found[OURS][1:]) / median_s
        print(f"clustertrain blocks {later:.1%} of the time of {side}, in the first save {first:.1%}")
    grown_bytes = peak.peak_bytes - before_bytes
    print(f"peak above the state: {grown_bytes / 1e6:.0f} MB, {grown_bytes / size_bytes(state):.2f} of it")
    return found


def show(name: str, seconds: list[float]) -> None:
    numbers = (statistics.median(seconds), min(seconds), max(seconds))
    print(f"{name:34}" + "".join(f"{1000 * s:>7.0f} ms" for s in numbers))


if __name__ == "__main__":
    main()
