"""A stream with `state_dict` and `load_state_dict`: it splits itself by rank, and resumes from its own state.

Each rank takes all that its stream yields, without regard to epochs: when it ends, it is begun again. So a
resume needs nothing but the state, which is that of torchdata, litdata or mosaicml-streaming.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from inspect import signature
from typing import Any

from clustertrain.errors import DataError, JobError
from clustertrain.training.data.loading import Collate
from clustertrain.training.data.sampling import MicroBatch, Position
from clustertrain.training.data.streaming import digest_of, is_stream
from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.ranks.dtensors import map_state
from clustertrain.training.ranks.rng import private_rng
from clustertrain.training.saving import check_readable
from clustertrain.training.values import Batch, Dataset, State

_END = object()


def splits_itself(dataset: Dataset) -> bool:
    """Return whether each rank gets samples of its own from a data set."""
    methods = ("state_dict", "load_state_dict")
    return is_stream(dataset) and all(callable(getattr(dataset, method, None)) for method in methods)


class SplitStream:
    """`fetch[key]` is the batch of the next samples of this rank's stream, as many as the key has ids.

    Args:
        name: the method that returned the stream, for messages.
        restarts: a key of an earlier place begins with another copy of the stream, for an evaluation. The
            stream itself may go on where it was left, or in another order.
    """

    def __init__(self, dataset: Dataset, collate: Collate, name: str, *, restarts: bool = False) -> None:
        self._dataset, self._collate, self._name, self._restarts = dataset, collate, name, restarts
        self._iterator: Iterator[Any] | None = None
        self._last_id = -1
        self._taken = 0  # since the stream was begun, also before a resume
        self._resumed: tuple[int, Any] | None = None  # at which step, and the state

    def __getitem__(self, key: MicroBatch) -> Batch:
        if self._restarts and key.ids[0] <= self._last_id:
            self._iterator, self._taken = None, 0
        self._last_id = key.ids[-1]
        with private_rng(key.seed):  # so random operations are the same after a resume
            return self._collate([self._next() for _ in key.ids])

    def _next(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(deepcopy(self._dataset) if self._restarts else self._dataset)
            if (sample := next(self._iterator, _END)) is not _END:
                self._taken += 1
                return sample
            self._iterator, self._taken = None, 0
        raise DataError(
            f"{self._name} yields no sample on this worker.\n"
            "Each worker's `iter()` must yield samples of its own: use fewer workers, or more shards."
        )

    def states(self, position: Position, rank_info: RankInfo) -> list[Any]:
        """Return the states of all ranks for a checkpoint at `position`, after the last batch that was read.

        It is a collective.

        Raises:
            JobError: no resume could read one.
        """
        if self._resumed is not None and self._resumed[0] == position.step:  # the first batch is read already
            return gather_objects(self._resumed[1], rank_info)
        known = {  # the arguments of litdata and of mosaicml-streaming; samples are read one by one
            "num_samples_yielded": self._taken,
            "num_workers": 0,
            "batch_size": 1,
            "num_samples": self._taken * rank_info.world_size,
            "from_beginning": True,
        }
        names = signature(self._dataset.state_dict).parameters
        stream = self._dataset.state_dict(**{name: known[name] for name in names if name in known})
        check_readable({"train_data": stream})
        return gather_objects({"taken": self._taken, "stream": stream}, rank_info)

    def check(self, first_batch: Batch, start: Position, rank_info: RankInfo) -> str | None:
        """Check that a resume can read the state, and compare the first batches of the ranks.

        All ranks call it before the first step.

        Returns:
            a warning, if the first batch is the same on all ranks.

        Raises:
            JobError: no resume could read its state.
        """
        self.states(start, rank_info)
        digests = gather_objects(digest_of(first_batch), rank_info)
        if len(digests) == 1 or len({*digests}) > 1:
            return None
        return (
            f"{self._name} yields the same samples on all workers, and each trains on all that it gets, "
            "because the stream has state_dict and load_state_dict. Split it by rank, or remove these methods"
        )

    def resume(self, state: State, position: Position, rank_info: RankInfo) -> None:
        """Continue at `position` of a checkpoint.

        Raises:
            JobError: it has the states of another number of ranks.
        """
        of_ranks = state.get("data_of_ranks", [])
        if len(of_ranks) != rank_info.world_size:
            raise JobError(
                f"The checkpoint has the state of {self._name} on {len(of_ranks)} workers, and this start "
                f"has {rank_info.world_size}: the stream splits itself, and its parts cannot be split anew.\n"
                f"Set resources.workers: {len(of_ranks)}, or start over with --fresh, which keeps this run."
            )
        # Cloned: they are mapped from a file that is removed later.
        own = map_state(of_ranks[rank_info.rank], lambda path, tensor: tensor.clone())
        self._resumed, self._taken = (position.step, own), own["taken"]
        self._dataset.load_state_dict(deepcopy(own["stream"]))
