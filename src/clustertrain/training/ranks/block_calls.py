"""Which blocks of FSDP each rank calls: all ranks must call the same ones, in the same order.

The ranks gather the parameters of a block together, when its forward() is called. A rank that calls another
block at that moment gets parts of both. With blocks of equal sizes this is not an error of FSDP: the rank
computes with wrong weights, and its gradients go into the wrong block.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.ranks.dtensors import is_sharded

Hook = Callable[[nn.Module, Any], None]


class BlockCalls:
    """The blocks that this rank has called in training since the last check. Without FSDP it does nothing."""

    def __init__(self, model: nn.Module, rank_info: RankInfo) -> None:
        self._rank_info = rank_info
        self._names: list[str] = []
        self._calls = array("L")
        if rank_info.world_size == 1 or not is_sharded(model):
            return
        for name, module in model.named_modules():
            if module is not model and is_sharded(module):
                module.register_forward_pre_hook(self._count(len(self._names)))
                self._names.append(name.replace("._checkpoint_wrapped_module", ""))

    def _count(self, block: int) -> Hook:
        def count(module: nn.Module, _: Any) -> None:
            if module.training:
                self._calls.append(block)

        uncompiled: Hook = torch.compiler.disable(count)  # type: ignore[no-untyped-call]  # torch's own lacks types
        return uncompiled

    def check(self, step: int) -> None:
        """Compare with the other ranks; before values of the steps are shown or saved.

        Args:
            step: the last one.

        Raises:
            JobError: on all ranks, if one has called other blocks.
        """
        if not self._names:
            return
        of_ranks = gather_objects((len(self._calls), zlib.crc32(self._calls.tobytes())), self._rank_info)
        if len({*of_ranks}) > 1:
            raise self._differ(step)
        self._calls = array("L")

    def _differ(self, step: int) -> JobError:
        of_ranks = gather_objects([self._names[block] for block in self._calls], self._rank_info)
        first = of_ranks[0]
        rank, other = next((rank, calls) for rank, calls in enumerate(of_ranks) if calls != first)
        pairs = zip_longest(first, other, fillvalue="no other block")
        mine, theirs = next(pair for pair in pairs if pair[0] != pair[1])
        return JobError(
            f"Until step {step}, rank {rank} called the block {theirs} where rank 0 called {mine}: "
            "FSDP mixed their weights. Nothing was saved since.\n"
            "With FSDP all ranks must call the same blocks in the same order. Make the module that chooses "
            "one block\n(train.fsdp.blocks, Task.blocks()), with train.find_unused_parameters: true, or set "
            "train.strategy: ddp."
        )
