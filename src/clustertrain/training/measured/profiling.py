"""A profile of a few steps: what each rank did when, for Perfetto and TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from clustertrain.errors import JobError
from clustertrain.training.data.sampling import TrainOrder
from clustertrain.training.ranks.distributed import RankInfo, sum_over_ranks


def check_profile(order: TrainOrder) -> None:
    """Check that the run has all steps of the profile.

    Raises:
        JobError: the run ends before the last step of the profile.
    """
    profile = order.settings.profile
    if profile is not None and profile.steps[1] > order.total_steps:
        raise JobError(
            f"train.profile.steps is {list(profile.steps)}, but the run has {order.total_steps} steps.\n"
            "Name steps that the run has, counted from 1, or train longer."
        )


class StepProfile:
    """Records the steps that the job names, the first to the last one, and writes a file on each rank.

    A run that resumes after the first of them records the rest.

    Args:
        file: as Host.profile.
        log: writes a record of a kind on rank 0.
    """

    def __init__(
        self,
        order: TrainOrder,
        rank_info: RankInfo,
        file: Callable[[], tuple[Path, str]],
        log: Callable[..., None],
    ) -> None:
        wanted = order.settings.profile
        self._first, self._last = wanted.steps if wanted is not None else (0, -1)
        self._rank_info, self._file, self._log = rank_info, file, log
        self._next_step = order.start.step + 1
        self._profiler: profile | None = None

    def begin_if_due(self) -> None:
        """Start the profiler before a batch is loaded, if its step is to be recorded."""
        if self._profiler is None and self._first <= self._next_step <= self._last:
            activities = [ProfilerActivity.CPU]
            if self._rank_info.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._first = self._next_step
            self._profiler = profile(activities=activities, record_shapes=True)
            self._profiler.start()

    def step_done(self, step: int) -> None:
        """Count step `step` as done, on every rank, and write the profile after its last step."""
        self._next_step = step + 1
        if step >= self._last:
            self.finish()

    def finish(self) -> None:
        """Write the recorded steps, if there are some: also if the run is stopped before the last one."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        if self._rank_info.device.type == "cuda":
            torch.cuda.synchronize(self._rank_info.device)  # its last kernels belong to the profile
        profiler.stop()
        path, uri = self._file()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}")
        profiler.export_chrome_trace(str(unfinished))
        unfinished.replace(path)
        # Only then are all files there.
        sum_over_ranks(torch.zeros(1, device=self._rank_info.device), self._rank_info).item()
        self._log(
            "note",
            text=f"the profile of steps {self._first} to {self._next_step - 1} is {uri}; those of the other "
            "ranks are beside it. Open one at https://ui.perfetto.dev, "
            "or the folder with TensorBoard and torch-tb-profiler",
            profile=uri,
        )
