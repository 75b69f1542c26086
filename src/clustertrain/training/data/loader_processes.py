"""`loader_workers: auto`: how many loader processes a rank starts, from its CPUs and a measured batch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from itertools import islice
from typing import Any

from clustertrain.errors import JobError
from clustertrain.training.data.loading import sent_copy

_MOST = 16
_WORTH_S = 0.002  # to receive a batch from another process takes about as long
_MOST_COPIED_BYTES = 256 << 20  # each process has a copy of the data set


def processes_for(fetch: Any, keys: Iterable[Any] | None, cpus: float | None) -> tuple[int, str]:
    """The number of loader processes, and why, for the log.

    Args:
        fetch: `fetch[key]` loads a batch. A copy loads two, and the second is timed: a file that it opens
            stays closed in `fetch`, which could not be sent to a process with an open one.
        keys: of the batches, or None if none is to be timed.
        cpus: the CPUs of this rank; None: its share of those that its process may use.
    """
    cpus = cpus_of_rank() if cpus is None else cpus
    most = min(int(cpus) - 1, _MOST)
    if most < 1:
        return 0, f"loader_workers auto: 0, because this worker has {cpus:g} CPUs, one of them for training"
    try:
        copy, copied_bytes = sent_copy(fetch)
    except JobError as error:
        return (
            0,
            f"loader_workers auto: 0, because the data set cannot be pickled: {str(error).splitlines()[1]}",
        )
    measured = "shards are read while they are decoded"
    if keys is not None:
        batch_s = _seconds_per_batch(copy, keys)
        measured = f"a batch takes {1000 * batch_s:.1f} ms to load"
        if batch_s < _WORTH_S:
            return 0, f"loader_workers auto: 0, because {measured}, less than from another process"
    if copied_bytes > _MOST_COPIED_BYTES:
        return 0, (
            f"loader_workers auto: 0, although {measured}: each process would have a copy of the data set's "
            f"{copied_bytes >> 20} MiB in memory. Set train.loader_workers to start them"
        )
    return most, f"loader_workers auto: {most}, because {measured}, and this worker has {cpus:g} CPUs"


def _seconds_per_batch(fetch: Any, keys: Iterable[Any]) -> float:
    batch_s = 0.0
    for key in islice(keys, 2):
        began = time.perf_counter()
        fetch[key]
        batch_s = time.perf_counter() - began
    return batch_s


def cpus_of_rank() -> float:
    """The CPUs that this process may use, divided by the ranks of the node."""
    return len(os.sched_getaffinity(0)) / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
