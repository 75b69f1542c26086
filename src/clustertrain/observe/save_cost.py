"""What the saves and failures of a job with `checkpoint.every: auto` are expected to cost, for `check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from clustertrain.job.model import Job
from clustertrain.run import save_interval as formula
from clustertrain.run.streams.history import events_of_last_attempts
from clustertrain.units import time_text


def save_cost_line(job: Job) -> str:
    """The interval and the cost, from the saves and restarts that the run's last attempts measured."""
    last = events_of_last_attempts(job.storage.location, job.name)
    saves = [event for events in last for event in events if event["kind"] == "checkpoint"]
    mtbf_s = formula.mtbf_s(job.failures, job.resources.max_nodes)
    if not saves:
        first = time_text(formula.first_interval_s(mtbf_s))
        return (
            "checkpoint.every auto: how long training waits for a save is not known yet; "
            f"the first one, after {first}, measures it"
        )
    stall_s = median(float(save.get("blocking_s", 0.0)) for save in saves)
    write_s = median(float(save.get("write_s", 0.0)) for save in saves)
    restarts_s = [each for events in last for each in _restarts_s(events)]
    restart_s = median(restarts_s or [formula.RESTART_S])
    interval_s = max(formula.best_interval_s(stall_s, mtbf_s), write_s)
    expected = formula.cost(interval_s, stall_s, max(0.0, write_s - stall_s), restart_s, mtbf_s)
    return f"checkpoint.every auto: {expected.text}"


def _restarts_s(events: Iterable[dict[str, Any]]) -> Iterator[float]:
    """The times from the failure of a worker to the next start of the workers in an attempt."""
    died_s = None
    for event in events:
        if event["kind"] == "worker_died":
            died_s = died_s or float(event["time"])
        elif event["kind"] == "group_started" and died_s is not None:
            yield float(event["time"]) - died_s
            died_s = None
