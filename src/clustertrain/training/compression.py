"""Gradients exchanged with fewer bytes: DDP's communication hooks, their state, and the bytes of a step.

DDP compares the annotations of a hook with types, so they must not be text: no future import here.
"""

from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket  # torch.distributed has it too, without a type
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from clustertrain.training.building import SETTLING_PASSES
from clustertrain.training.distributed import RankInfo, gather_over_ranks
from clustertrain.training.settings import TrainSettings

# Of the first steps the gradients change too fast for an approximation that starts from the last one
# (Vogels et al. 2019, arXiv:1905.13727, and torch's own advice).
EXACT_STEPS = 100
MATRIX_RANK = 4


class Compression:
    """Compresses what DDP exchanges. Without DDP (one rank) and with "none" it does nothing.

    fp16 and bf16 halve the bytes. powersgd approximates each matrix of a gradient by two thin ones; what the
    approximation leaves out is added to the next gradient, and is different on each rank.
    """

    def __init__(self, settings: TrainSettings, wrapped: nn.Module, rank_info: RankInfo) -> None:
        self._name, self._rank_info = settings.gradient_compression, rank_info
        self._power: PowerSGDState | None = None
        self._bucket_sizes: dict[int, int] = {}  # elements
        self._running_bytes = (0, 0)
        self._step_bytes = (0, 0)  # of the last step: uncompressed, and exchanged
        self._noted_bytes = (0, 0)
        if self._name == "none" or not isinstance(wrapped, DistributedDataParallel):
            return
        if self._name == "powersgd":
            self._exact_steps = max(settings.warmup_steps, EXACT_STEPS)
            self._power = PowerSGDState(
                process_group=None,
                matrix_approximation_rank=MATRIX_RANK,
                start_powerSGD_iter=SETTLING_PASSES + self._exact_steps,
            )
        wrapped.register_comm_hook(None, self._exchange)

    def _exchange(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        self._bucket_sizes[bucket.index()] = gradients.numel()
        if self._power is not None:
            future, exchanged = self._approximate(self._power, bucket)
        else:
            hook = fp16_compress_hook if self._name == "fp16" else bf16_compress_hook
            future, exchanged = hook(None, bucket), 2 * gradients.numel()  # type: ignore[arg-type]  # None: all ranks
        uncompressed, sent = self._running_bytes
        self._running_bytes = (uncompressed + gradients.nbytes, sent + exchanged)
        if bucket.is_last():
            self._step_bytes, self._running_bytes = self._running_bytes, (0, 0)
        return future

    def _approximate(
        self, power: PowerSGDState, bucket: GradBucket
    ) -> tuple[torch.futures.Future[torch.Tensor], int]:
        gradients, is_exact = bucket.buffer(), power.iter < power.start_powerSGD_iter
        elements_before = power.total_numel_after_compression
        future = powerSGD_hook(power, bucket)
        elements = power.total_numel_after_compression - elements_before
        return future, gradients.nbytes if is_exact else elements * gradients.element_size()

    def figures(self) -> dict[str, int]:
        """For the log: the bytes of gradients that each rank gave to the all_reduces of the last step."""
        return {"gradient_bytes": self._step_bytes[1]} if self._step_bytes[1] else {}

    def note(self) -> str | None:
        """The bytes of a step in a sentence, if they have changed since the last call."""
        if self._step_bytes == self._noted_bytes:
            return None
        self._noted_bytes = self._step_bytes
        uncompressed, exchanged = self._step_bytes
        text = f"gradients: {exchanged:,} bytes per step and rank instead of {uncompressed:,} ({self._name})"
        if exchanged == uncompressed and self._power is not None:
            text = (
                f"gradients: {uncompressed:,} bytes per step and rank; "
                f"powersgd compresses them after {self._exact_steps} steps"
            )
        return text

    def state(self) -> dict[str, Any] | None:
        """For a checkpoint, on the CPU; None for a compression that keeps nothing. It is a collective."""
        if self._power is None:
            return None
        power, buckets = self._power, sorted(self._power.error_dict)
        random_state: Any = power.rng.get_state()  # (name, words, position, has_gauss, cached_gaussian)
        return {
            "iterations": power.iter,
            # Bucket by bucket: a GPU need not hold the errors of all ranks at once.
            "errors": [gather_over_ranks(power.error_dict[i], self._rank_info) for i in buckets],
            "p": [power.p_memory_dict[i].cpu() for i in buckets],
            "q": [power.q_memory_dict[i].cpu() for i in buckets],
            "random": [random_state[1].tolist(), *random_state[2:]],
        }

    def load(self, state: dict[str, Any] | None) -> str | None:
        """Continue from `state`; returns what of it could not be used, as a sentence.

        Called after the buckets are settled. The errors belong to ranks and buckets: with others they are
        left out, and the run continues from new approximations.
        """
        if self._power is None or state is None:
            return None
        power, device = self._power, self._rank_info.device
        power.iter = state["iterations"]
        keys, position, has_gauss, gauss = state["random"]
        power.rng.set_state(("MT19937", keys, position, has_gauss, gauss))
        sizes = [self._bucket_sizes[i] for i in sorted(self._bucket_sizes)]
        expected = [(self._rank_info.world_size, size) for size in sizes]
        found = [tuple(errors.shape) for errors in state["errors"]]
        if found and found != expected:
            return "powersgd starts with new approximations: the checkpoint's are of other ranks or buckets"
        for i, (errors, p, q) in enumerate(zip(state["errors"], state["p"], state["q"], strict=True)):
            power.error_dict[i] = errors[self._rank_info.rank].to(device, copy=True)
            power.p_memory_dict[i] = p.to(device, copy=True)  # `state` may be mapped from a file
            power.q_memory_dict[i] = q.to(device, copy=True)
        return None
