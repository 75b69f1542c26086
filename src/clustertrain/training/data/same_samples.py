"""The ranks have the same data: three samples of each map-style data set are compared before the first step.

Where each rank draws a split for itself, or two nodes list a folder in another order, one rank trains on what
another one holds out, and no number shows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from itertools import chain
from typing import Any

from clustertrain.errors import JobError
from clustertrain.training.data.loading import Fetch, sent_copy
from clustertrain.training.data.sampling import MicroBatch
from clustertrain.training.data.streaming import digest_of, is_stream
from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.task import Task
from clustertrain.training.values import Dataset

_WITHIN_S = 2.0


def differing_sample(task: Task, datasets: Mapping[str, Any], seed: int, rank_info: RankInfo) -> str | None:
    """Compare the first, the middle and the last sample of each data set over the ranks.

    It compares as many as two seconds allow; all ranks call it. The samples are fetched with the random
    numbers of `seed` on every rank.

    Args:
        datasets: by the methods of the task that returned them.

    Returns:
        a warning that names the first sample that differs.
    """
    if rank_info.world_size == 1:
        return None
    own: dict[tuple[str, int], int] = {}
    ends_s = time.monotonic() + _WITHIN_S
    for method, dataset in datasets.items():
        if dataset is not None and not is_stream(dataset):
            own |= {(method, index): digest for index, digest in _digests(dataset, seed, ends_s)}
    of_ranks = gather_objects(own, rank_info)
    for sample in dict.fromkeys(chain.from_iterable(of_ranks)):
        digests = {rank: found[sample] for rank, found in enumerate(of_ranks) if sample in found}
        first, *others = digests
        if differ := [rank for rank in others if digests[rank] != digests[first]]:
            method, index = sample
            return (
                f"sample {index} of {type(task).__name__}.{method}() is another one on rank {differ[0]} than "
                f"on rank {first}: one rank may train on what another holds out. Draw a split with one seed "
                "for all ranks, and sort what a folder lists"
            )
    return None


def _digests(dataset: Dataset, seed: int, ends_s: float) -> Iterator[tuple[int, int]]:
    """Yield the digests of the samples that are the same when they are fetched again.

    A sample that differs has a time in it, or random numbers of its own. Samples that raise an error have no
    digest, because the loader reports the error.

    A copy of the data set fetches them: a file that it opens stays closed in the data set, and a counter does
    not change.
    """
    try:
        fetch = Fetch(dataset, list)
        with suppress(JobError):  # it cannot be pickled, and no process gets a copy of it
            fetch = sent_copy(fetch, file=_UntilLate((time.monotonic() + ends_s) / 2))
        for index in sorted({0, len(dataset) // 2, len(dataset) - 1}):
            found = []
            for _ in range(2):
                found.append(digest_of(fetch[MicroBatch([index], seed, 1.0, None)]))
                if time.monotonic() > ends_s:
                    return
            if found[0] == found[1]:
                yield index, found[0]
    except Exception:  # noqa: BLE001  of the user's code, or of a sample that has no bytes
        return


class _UntilLate(BytesIO):
    """Takes no more bytes after a time: a list of millions of names takes long to copy."""

    def __init__(self, ends_s: float) -> None:
        super().__init__()
        self._ends_s = ends_s

    def write(self, data: Any) -> int:
        if time.monotonic() > self._ends_s:
            raise TimeoutError
        return super().write(data)
