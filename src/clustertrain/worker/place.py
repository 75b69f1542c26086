"""The place of a rank in its group: its numbers, its address and its devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clustertrain.node.network import LOOPBACK

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Place:
    """The place of a rank in its group and on its node.

    Attributes:
        rank, world_size: of the group.
        local_rank, local_world_size: of the node.
        node_rank: of the node in the group.
        address: of the node, at which the other nodes reach it.
        gpus: the GPUs of this rank, as indices into the GPUs that its process sees.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    address: str
    gpus: tuple[int, ...] = ()

    @property
    def device(self) -> torch.device:
        """The first GPU of this rank, or the CPU."""
        import torch

        return torch.device("cuda", self.gpus[0]) if self.gpus else torch.device("cpu")


ONLY_RANK = Place(rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, address=LOOPBACK)
"""Of a group with one rank, without its GPUs."""
