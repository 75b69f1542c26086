"""Where the time of a step goes: waiting for data, computing, and exchanging gradients.

A CPU is measured with its clock. A GPU computes later than the program asks it to: there the marks are CUDA
events in its stream, which cost microseconds and are read when the GPU has passed them. Nothing waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch.autograd import Variable

_T = TypeVar("_T")
_Mark = float | torch.cuda.Event
_Kind = Literal["compute", "communication"]
_KINDS: tuple[_Kind, ...] = ("compute", "communication", "compute")


@dataclass(frozen=True)
class Times:
    """Means per optimizer step of one rank, in seconds.

    Attributes:
        data_wait_s: the program waited for the next batch.
        compute_s: forward and backward passes and the optimizer.
        communication_s: from the last gradient of the backward pass until the gradients of all ranks are
            summed. What is sent during the backward pass is not part of it; waiting for a slower rank is.
    """

    data_wait_s: float
    compute_s: float
    communication_s: float

    @property
    def own_s(self) -> float:
        """The part of a step in which the rank waits for no other rank."""
        return self.data_wait_s + self.compute_s


class StepTimes:
    """Measures the steps of one rank.

    The loop iterates over `batches(…)`; it calls `exchange` before a backward pass that exchanges gradients,
    and `step_done` after the optimizer.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._spans: deque[tuple[_Kind, _Mark, _Mark]] = deque()  # those that the GPU has not passed yet
        self._began: _Mark | None = None  # computing, or None between a step and the next batch
        self._marks: list[_Mark] = []  # the begin and the end of the exchange of gradients, in this step
        self._restart()

    def _restart(self) -> None:
        self._steps, self._data_wait_s = 0, 0.0
        self._sums_s: dict[_Kind, float] = {"compute": 0.0, "communication": 0.0}

    def batches(self, batches: Iterable[_T], before: Callable[[], None]) -> Iterator[_T]:
        """Yield the same batches, and measure how long each is waited for; `before` is called before each."""
        iterator = iter(batches)
        while True:
            asked = time.perf_counter()
            before()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._data_wait_s += time.perf_counter() - asked
            self._began = self._mark()
            yield batch
            self._end_computing()  # of a batch that is not the last one of its step

    def exchange(self, loss: torch.Tensor) -> None:
        """Measure the exchange of gradients in the backward pass of `loss`.

        Autograd calls its callbacks when all gradients are computed, in the order in which they were queued.
        The hook of the loss is the first one of a backward pass, so its callback comes before DDP's, which
        waits for the exchange. That callback queues another one, which comes after DDP's.
        """

        def begin() -> None:
            self._marks = [self._mark()]
            _queue(lambda: self._marks.append(self._mark()))

        loss.register_hook(lambda gradient: _queue(begin))  # type: ignore[no-untyped-call]

    def step_done(self) -> None:
        self._end_computing()
        self._steps += 1
        self._add_passed()

    def _end_computing(self) -> None:
        if self._began is None:
            return
        now = self._mark()
        marks = [self._began, *self._marks, now]
        self._spans += zip(_KINDS, marks, marks[1:], strict=False)
        self._began, self._marks = None, []

    def read(self) -> Times:
        """Return the means since the last `read`.

        Call it right after the loss of the last step was read from the device.
        """
        if self._spans and isinstance(last := self._spans[-1][2], torch.cuda.Event):
            last.synchronize()
        self._add_passed()
        steps = max(1, self._steps)
        sums_s = self._data_wait_s, self._sums_s["compute"], self._sums_s["communication"]
        times = Times(*(sum_s / steps for sum_s in sums_s))
        self._restart()
        return times

    def _mark(self) -> _Mark:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own lacks types
        event.record()
        return event

    def _add_passed(self) -> None:
        """Add the spans that the GPU has passed, so that their events are not kept until the next `read`."""
        while self._spans and _is_passed(self._spans[0][2]):
            kind, begin, end = self._spans.popleft()
            self._sums_s[kind] += _between_s(begin, end)


def _queue(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)


def _is_passed(mark: _Mark) -> bool:
    return not isinstance(mark, torch.cuda.Event) or bool(mark.query())  # type: ignore[no-untyped-call]


def _between_s(begin: _Mark, end: _Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):  # both are, on a CPU
        return end - begin  # type: ignore[operator]  # the marks of a rank have one type
    return float(begin.elapsed_time(end)) / 1000
