"""Outputs and targets of all samples of an evaluation, from all ranks, in the order of the data set."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.distributed as dist

from clustertrain.errors import JobError
from clustertrain.training.nested_tensors import dtype_name, map_leaves, map_tensors
from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.values import Outputs

_CHUNK_BYTES = 16 << 20  # of all ranks together, on rank 0's device


class SampleRows:
    """The outputs and targets of this rank's samples, on the CPU, with one row per sample.

    They are tensors (samples, …) of any dtype, or nested dicts, tuples, lists, named tuples and dataclasses
    of such tensors and of None.

    Args:
        task: the name of the class whose `eval_step` returned them.
        metrics: the names of the metrics that take all samples; both are for messages.
    """

    def __init__(self, task: str, metrics: list[str]) -> None:
        self._task, self._metrics = task, metrics
        self.clear()

    def clear(self) -> None:
        self._columns: list[tuple[str, str, tuple[int, ...]]] = []  # name, dtype, shape of a row
        self._parts: list[list[torch.Tensor]] = []  # of each column, one per batch
        self._structure: Any = None
        self._ids: list[int] = []

    def add(self, outputs: Outputs, targets: Outputs, ids: list[int]) -> None:
        """Add a copy of a batch; `ids` are the places of its samples in the data set.

        Raises:
            JobError: a value is not a tensor with one row per sample, or differs from earlier batches.
        """
        tensors: list[tuple[str, torch.Tensor]] = []

        def take(name: str, value: Any) -> Any:
            if value is None:
                return None
            if not isinstance(value, torch.Tensor):
                self._refuse(f"{name} is {type(value).__name__}, not a tensor")
            if value.dim() == 0 or len(value) != len(ids):
                self._refuse(f"{name} has shape {tuple(value.shape)}, but the batch has {len(ids)} samples")
            tensors.append((name, value))
            return torch.empty(0)

        structure = map_leaves(outputs, take, "outputs"), map_leaves(targets, take, "targets")
        columns = [(name, dtype_name(tensor), tuple(tensor.shape[1:])) for name, tensor in tensors]
        if self._structure is None:
            self._columns, self._structure = columns, structure
            self._parts = [[] for _ in columns]
        if columns != self._columns:
            self._refuse(f"one batch has {_shown(self._columns)}, another one {_shown(columns)}")
        for parts, (_, tensor) in zip(self._parts, tensors, strict=True):
            # A copy, because the next batch may reuse the memory.
            parts.append(tensor.detach().to("cpu", copy=True))
        self._ids += ids

    def of_all_ranks(self, rank_info: RankInfo, samples: int) -> tuple[Outputs, Outputs] | None:
        """Return (outputs, targets) of all `samples`, in the order of the data set, on rank 0.

        The other ranks get None. Every rank calls it, after it has added as many samples as
        loader_kinds.evaluation_keys gives it. The rows are removed.

        Raises:
            JobError: on all ranks, if shapes or dtypes differ between ranks.
        """
        of_ranks = gather_objects((self._columns, self._ids), rank_info)
        expected = of_ranks[0][0]
        for rank, (found, _) in enumerate(of_ranks):
            if found != expected:
                self._refuse(f"rank 0 has {_shown(expected)}, rank {rank} has {_shown(found)}")
        in_order = torch.tensor([i for _, ids in of_ranks for i in ids]).sort().values
        places = torch.searchsorted(in_order, torch.tensor(self._ids)).tolist()
        gathered = []
        while self._parts:
            gathered.append(_gather(torch.cat(self._parts.pop(0)), places, rank_info, samples))
        columns, structure = iter(gathered), self._structure
        self.clear()
        if rank_info.rank != 0:
            return None
        outputs, targets = map_tensors(structure, lambda _: next(columns))
        return outputs, targets

    def _refuse(self, what: str) -> NoReturn:
        names = ", ".join(repr(name) for name in self._metrics)
        raise JobError(
            f"{self._task}.eval_step: {what}. The outputs and targets of all samples cannot be collected for "
            f"{names}.\n"
            "Return tensors of one shape whose first dimension is the batch, in tuples or dicts if there are "
            "several; or use a metric with `sums` or of torchmetrics: docs/guides/metrics.md."
        )


def _shown(columns: list[tuple[str, str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {dtype} {('samples', *row)}".replace("'", "") for name, dtype, row in columns)


def _gather(mine: torch.Tensor, places: list[int], rank_info: RankInfo, samples: int) -> torch.Tensor:
    """Gather the rows of all ranks at their places: (samples, …) on rank 0, empty on the others.

    They are sent in pieces, as many on each rank, and pickled, because gloo lacks some dtypes.
    """
    is_first, world_size = rank_info.rank == 0, rank_info.world_size
    row_bytes = mine.shape[1:].numel() * mine.element_size()
    everything = mine.new_empty((samples if is_first else 0, *mine.shape[1:]))
    rows = max(1, _CHUNK_BYTES // max(1, row_bytes * world_size))
    for start in range(0, -(-samples // world_size), rows):
        of_piece = slice(start, start + rows)
        piece = places[of_piece], mine[of_piece].clone()  # a view would be sent with all of `mine`
        pieces: list[Any] = [piece] * world_size
        if world_size > 1:
            dist.gather_object(piece, pieces if is_first else None)
        for places_of_rank, rows_of_rank in pieces if is_first else []:
            everything[places_of_rank] = rows_of_rank
    return everything
