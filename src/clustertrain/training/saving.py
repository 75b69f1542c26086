"""A save on all ranks: a rank that waits for the write of a checkpoint is in the phase "save".

The module also checks which states a resume can read, and copies what a function keeps of a restored one.

A watchdog ends a rank whose phase shows no progress. The progress of a write are its bytes: while they
increase on any rank, every rank that waits begins the phase again. A disk that stands still ends the wait.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any

import torch

from clustertrain.errors import JobError
from clustertrain.training.nested_tensors import map_tensors
from clustertrain.training.ranks.distributed import RankInfo, sum_over_ranks
from clustertrain.training.ranks.dtensors import map_state
from clustertrain.training.ranks.host import Host, SaveProgress
from clustertrain.training.values import State

_SMALL_BYTES = 4096
_ROUND_S = 5.0  # the ranks compare their bytes this often; far below the limit of the phase


def save_on_all_ranks(run: Host, rank_info: RankInfo, state: State, progress: SaveProgress) -> None:
    """Save with `run.save` on every rank, after the write of the save before; all ranks call it.

    It returns when every rank has copied its state, and without `run.saves_in_background` when it is written.
    """
    step = progress.step
    run.phase("save", step)
    _wait(run, rank_info, step)
    run.save(dict(state), progress)
    # A rank may copy longer than another: in the next step that one would wait under the limit of a step.
    _wait(run, rank_info, step, only_for_copies=run.saves_in_background)
    run.phase("step", step)


def wait_until_written(run: Host, step: int) -> None:
    """Wait for the last write of this rank, in the phase "save"."""
    run.phase("save", step)
    _wait(run, RankInfo(0, 0, 1, torch.device("cpu")), step)


def _wait(run: Host, rank_info: RankInfo, step: int, *, only_for_copies: bool = False) -> None:
    """Wait for the writes of all ranks of `rank_info`, which all call it."""
    before = 0
    while True:
        written = None if only_for_copies else run.wait_for_write(_ROUND_S)
        mine = torch.tensor([written is not None, written or 0], dtype=torch.int64, device=rank_info.device)
        writing, written_bytes = sum_over_ranks(mine, rank_info).tolist()
        if not writing:
            return
        if written_bytes != before:
            run.phase("save", step)
        before = written_bytes


def owned(state: Any, device: torch.device) -> Any:
    """Return `state`, with copies of the tensors that its user will probably keep.

    They may be mapped from a file that is removed later.

    On a CPU an optimizer keeps the tensors themselves, so all are copied. With a GPU the large ones are moved
    there; they stay mapped, so that the ranks of a node do not hold a copy each.
    """

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if device.type == "cpu" or tensor.nbytes <= _SMALL_BYTES else tensor

    return map_tensors(state, kept)


def check_readable(state: State) -> None:
    """Check that a resume can read a state: torch.save writes more than torch.load takes with weights_only.

    Raises:
        JobError: it cannot; names the first such value.
    """
    if found := _unreadable("state", map_state(dict(state), lambda path, tensor: None)):
        path, value = found
        kind = type(value)
        raise JobError(
            f"{path} is of the type {kind.__module__}.{kind.__qualname__}: no resume could read it from a "
            "checkpoint.\n"
            "Save only tensors, numbers, strings, and dicts, lists and tuples of them: for example "
            "torch.from_numpy(array), vars(namespace), str(path)."
        )


def _unreadable(path: str, value: Any) -> tuple[str, Any] | None:
    """Return the first of nested values that is not read again, with its path, or None."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except (AttributeError, TypeError, pickle.PickleError):
        parts: Iterable[tuple[Any, Any]] = enumerate(value) if isinstance(value, list | tuple) else ()
        if isinstance(value, dict):
            parts = [*value.items(), *((f"key {key}", key) for key in value)]
        return next(filter(None, (_unreadable(f"{path}.{k}", part) for k, part in parts)), (path, value))
    return None
