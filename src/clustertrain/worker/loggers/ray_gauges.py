"""Loss, throughput and goodput of rank 0 as metrics of Ray, whose own endpoint exports them to Prometheus."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

from clustertrain.run_files.folder.run_dir import RunDir

GAUGES = {
    "loss": "The training loss of the newest line of the log.",
    "samples_per_s": "The samples per second since the line before.",
    "goodput": "The share of the time since the workers started in which steps computed and exchanged.",
}


class RayGauges:
    """The gauges of a run; only in a process that is connected to Ray."""

    def __init__(self, run: RunDir) -> None:
        tags = {"run": run.name, "generation": str(run.generation)}
        self._gauges = {
            name: Gauge(f"clustertrain_{name}", meaning, tuple(tags)).set_default_tags(tags)
            for name, meaning in GAUGES.items()
        }
        self._began, self._step, self._productive_s = time.monotonic(), 0, 0.0

    def take(self, record: Mapping[str, Any]) -> None:
        """Show a line of the log of the training."""
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        step = record["step"]
        if self._step and "compute_s" in numbers:
            step_s = numbers["compute_s"] + numbers.get("communication_s", 0.0)
            self._productive_s += (step - self._step) * step_s
            numbers["goodput"] = self._productive_s / (time.monotonic() - self._began)
        self._step = step
        for name, gauge in self._gauges.items():
            if name in numbers:
                gauge.set(float(numbers[name]))
