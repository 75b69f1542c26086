"""The loop's interface to its launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from clustertrain.training.values import State

if TYPE_CHECKING:
    import torch


class Requests(NamedTuple):
    """The requests to a training, after a step."""

    stop: bool = False
    save: bool = False
    save_timer: bool = False  # the time between two saves has passed, by the loop's clock or the launcher's


@dataclass(frozen=True)
class SaveProgress:
    """How far the training is at a save, as the manifest of the checkpoint lists it."""

    step: int
    epoch: int
    samples_seen: int
    world_size: int
    metrics: Mapping[str, float]  # of an evaluation after this step
    reason: str  # "steps", "stop", …


class Host(Protocol):
    """One per rank. Rank 0's receives requests, saves and logs."""

    rank: int
    saves_in_background: bool  # False: training waits until a checkpoint is written; the same on every rank

    def requests(self) -> Requests:
        """Return what was requested since the last call; called on rank 0, once a step."""

    def restore(self) -> State | None:
        """Return the state passed to `save`, on all ranks, or None on a fresh start.

        Its tensors are on the CPU. Tensors that were divided among ranks are on the meta device: `fill` reads
        them.
        """

    def fill(self, tensors: dict[str, torch.Tensor]) -> None:
        """Read tensors of the checkpoint into `tensors`, each by its path in the state.

        They are the tensors that `restore` returned on the meta device. It is called on all ranks; each has
        its part of a divided tensor (a DTensor).
        """

    def reserve(self, state: State) -> None:
        """Allocate buffers for saves of tensors like these (live).

        It is called on all ranks after the first step.
        """

    def save(self, state: State, progress: SaveProgress) -> None:
        """Begin to save `state` (live tensors: copy them before returning); called on all ranks."""

    def wait_for_write(self, timeout_s: float) -> int | None:
        """Wait at most `timeout_s` for the write of this rank's last save.

        Returns:
            None if it is over, otherwise the bytes written so far.
        """

    def is_writing(self) -> bool:
        """Return whether this rank still writes a checkpoint, to the storage or to the memory of its node."""

    def memory_lacks(self, state: State) -> str:
        """Prepare checkpoints of a state like this one in the memory of this node.

        It is called on all ranks after the first step.

        Returns:
            what the node lacks for them, or empty.
        """

    def save_in_memory(self, state: State, progress: SaveProgress) -> None:
        """Begin to save `state` in the memory of this node; called on all ranks, as `save`.

        The checkpoint is for a start of the workers after some have died.
        """

    def log(self, record: dict[str, Any]) -> None:
        """Write a record of metrics, called on rank 0, or one of the kind "samples", called on each rank."""

    def images(self, step: int, images: Mapping[str, torch.Tensor]) -> None:
        """Write images of an evaluation, uint8 (channels, height, width) on the CPU; called on rank 0."""

    def phase(self, name: str, step: int) -> None:
        """Start the phase "first_step", "usual_step", "step", "evaluation" or "save".

        `step` is the last finished step. A "usual_step" does what the steps before it did; a "step" may take
        longer.
        """

    def profile(self) -> tuple[Path, str]:
        """Return the file for this rank's profile, and the place where people find it."""

    def finish(self) -> None:
        """Wait for the last save; called on all ranks, at the end."""
