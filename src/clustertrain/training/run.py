"""The loop's interface to its launcher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch


class Run(Protocol):
    """One per rank. Rank 0's receives requests, saves and logs."""

    rank: int

    def requests(self) -> tuple[bool, bool]:
        """(stop, save), as requested since the last call; called on rank 0, once a step."""

    def restore(self) -> dict[str, Any] | None:
        """The state passed to `save`, tensors on the CPU, on all ranks; None on a fresh start."""

    def reserve(self, state: dict[str, Any]) -> None:
        """Allocate buffers for saves of tensors like these (live); called on all ranks after the first
        step."""

    def save(self, state: dict[str, Any], progress: dict[str, Any]) -> None:
        """Save `state` (live tensors: copy them before returning); called on all ranks."""

    def log(self, record: dict[str, Any]) -> None:
        """Write a record of metrics; called on rank 0."""

    def images(self, step: int, images: Mapping[str, torch.Tensor]) -> None:
        """Write images of an evaluation, uint8 (channels, height, width) on the CPU; called on rank 0."""

    def phase(self, name: str, step: int) -> None:
        """Start of the phase "first_step", "step", "evaluation" or "save"; `step` is the last finished
        step."""

    def profile(self) -> tuple[Path, str]:
        """The file for this rank's profile, and the place where people find it."""

    def finish(self) -> None:
        """Wait for the last save; called on all ranks, at the end."""
