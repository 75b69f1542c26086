"""Ray Train with its public API alone, for a Ray with which the private one does not work (ray_internals.py).

The steps of a start and the workers are the same. What is missing: Ray's controller is a process of its own;
the number of workers is fixed; the start of their processes has no deadline of its own; a worker that dies
before training ends the run; no node with a broken GPU is left out; nothing notices that Ray itself has
ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.train import UserCallback

from clustertrain.driver.retry_policy import RetryPolicy, StopRetrying
from clustertrain.run.folder import Attempt
from clustertrain.run.records import Failure


class StockWatch(RetryPolicy, UserCallback):  # type: ignore[misc]  # ray ships no types
    """A RetryPolicy in Ray's one public callback: an error that it raises ends the run."""

    failed_start = StopRetrying

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, BaseException]) -> None:
        self.has_failed(worker_exceptions)
        self.before_restart()

    def _leave_out(self, attempt: Attempt, failure: Failure) -> str:
        return f"The next start may use {failure.host} again."
