"""What the curve shows of the steps beside their loss: times, speed, memory; stragglers and profiles.

All ranks measure. At a line of the log they exchange a few numbers, once, and rank 0 logs them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

from clustertrain.training.data.sampling import MicroBatch, TrainOrder
from clustertrain.training.measured.profiling import StepProfile
from clustertrain.training.measured.step_times import StepTimes, Times
from clustertrain.training.measured.stragglers import Stragglers, by_rank, straggler_text
from clustertrain.training.ranks.distributed import RankInfo, gather_objects, gather_over_ranks
from clustertrain.training.task import Task
from clustertrain.training.values import Batch


class StepWatch:
    """Watches the steps of one rank; every rank makes the same calls.

    Args:
        profile: as Host.profile.
        log: writes a record of a kind on rank 0.
    """

    def __init__(
        self,
        task: Task,
        rank_info: RankInfo,
        order: TrainOrder,
        profile: Callable[[], tuple[Path, str]],
        log: Callable[..., None],
    ) -> None:
        self._task, self._settings, self._rank_info, self._log = task, order.settings, rank_info, log
        self._times = StepTimes(rank_info.device)
        self._stragglers = Stragglers()
        self.profile = StepProfile(order, rank_info, profile, log)

    def batches(self, batches: Iterable[tuple[MicroBatch, Batch]]) -> Iterator[tuple[MicroBatch, Batch]]:
        return self._times.batches(batches, before=self.profile.begin_if_due)

    def backward(self, loss: torch.Tensor, *, exchanges: bool) -> None:
        """Measure the exchange of gradients in the backward pass of `loss`, which comes next.

        Args:
            exchanges: the ranks exchange their gradients in it.
        """
        if exchanges and self._rank_info.world_size > 1:
            self._times.exchange(loss)

    def step_done(self, step: int) -> None:
        self._times.step_done()
        self.profile.step_done(step)

    def figures(self, samples_per_s: float) -> dict[str, float | list[float]]:
        """Return the figures of the steps since the last line of the log, the same on every rank.

        docs/guides/metrics.md describes them.

        Args:
            samples_per_s: of all ranks.
        """
        of_ranks = self._gathered()
        times = [Times(*seconds) for seconds in of_ranks[:, :3].tolist()]
        # In a pass with FSDP a rank waits for the parts of the others: only the data are its own.
        own = [replace(t, compute_s=0.0) for t in times] if self._settings.strategy == "fsdp" else times
        self._warn_of_stragglers(own)
        figures: dict[str, float | list[float]] = {
            "samples_per_s": samples_per_s,
            "data_wait_s": fmean(t.data_wait_s for t in times),
            "compute_s": fmean(t.compute_s for t in times),
        }
        if len(times) > 1:
            figures["communication_s"] = fmean(t.communication_s for t in times)
            figures |= by_rank([t.own_s for t in own])
        if self._task.tokens_per_sample is not None:
            figures["tokens_per_s"] = samples_per_s * self._task.tokens_per_sample
        if self._rank_info.device.type == "cuda":
            figures["gpu_memory_peak_bytes"] = of_ranks[:, 3].max().item()
            if (of_ranks[:, 4] >= 0).all():
                figures["gpu_utilization_percent"] = of_ranks[:, 4].mean().item()
        return figures

    def _gathered(self) -> torch.Tensor:
        """Gather the numbers of every rank, float64 (world_size, 5), with one all_gather."""
        times, device = self._times.read(), self._rank_info.device
        memory, utilization = 0.0, -1.0
        if device.type == "cuda":
            memory = float(torch.cuda.max_memory_reserved(device))
            with suppress(Exception):  # without nvidia-ml-py, on a MIG slice, or in a container without NVML
                utilization = float(torch.cuda.utilization(device))
        mine = [times.data_wait_s, times.compute_s, times.communication_s, memory, utilization]
        return gather_over_ranks(torch.tensor(mine, dtype=torch.float64), self._rank_info)

    def _warn_of_stragglers(self, times: list[Times]) -> None:
        if ranks := self._stragglers.new(times):
            hosts = gather_objects(socket.gethostname(), self._rank_info)
            for rank in ranks:
                self._log("warning", text=straggler_text(rank, hosts[rank], times))
