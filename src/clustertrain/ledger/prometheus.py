"""The ledger as metrics.prom in the run's folder, for the textfile collector of node_exporter."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from clustertrain.errors import StorageError
from clustertrain.ledger.book import CATEGORIES, Ledger
from clustertrain.ledger.of_run import ledger_of
from clustertrain.run.folder import RunDir

_EVERY_S = 15.0
_SHARE = 100  # of the time at most 1/100 is spent on the ledger, whatever a long run's records take


class Metric(NamedTuple):
    """A metric of Prometheus: what it says, and its labels beside run and generation."""

    meaning: str
    labels: tuple[str, ...] = ()


METRICS = {
    "clustertrain_run_seconds": Metric(
        "Wall seconds of the run in a category of the ledger.", ("category", "goodput", "productive")
    ),
    "clustertrain_run_loss_seconds": Metric(
        "The ten largest losses, in wall seconds by category and cause.", ("category", "cause")
    ),
    "clustertrain_run_wall_seconds": Metric("Wall seconds from the first submission or start."),
    "clustertrain_run_ettr": Metric("Effective training time ratio: productive / wall seconds."),
    "clustertrain_run_device_hours": Metric("GPU-hours that the ranks held, or CPU-hours.", ("device",)),
    "clustertrain_run_ledger_time_seconds": Metric("When these numbers were computed, since 1970."),
}
"""The metrics by their names, all of them gauges: a loss that is noticed late moves seconds to it."""
_MOST_LOSSES = 10


def prometheus_text(run: RunDir, ledger: Ledger, *, now: float) -> str:
    """The ledger of a run in Prometheus' text format."""
    lines = []
    for name, metric in METRICS.items():
        lines += [f"# HELP {name} {metric.meaning}", f"# TYPE {name} gauge"]
        for labels, value in _samples(name, ledger, now):
            given = {
                "run": run.name,
                "generation": str(run.generation),
                **dict(zip(metric.labels, labels, strict=True)),
            }
            text = ",".join(f'{key}="{_escaped(label)}"' for key, label in given.items())
            lines.append(f"{name}{{{text}}} {value:.6f}")
    return "\n".join(lines) + "\n"


def _samples(name: str, ledger: Ledger, now: float) -> Iterator[tuple[tuple[str, ...], float]]:
    """The values of a metric with their labels."""
    match name:
        case "clustertrain_run_seconds":
            for category, seconds in ledger.by_category().items():
                of = CATEGORIES[category]
                yield (category, of.goodput, str(of.productive).lower()), seconds
        case "clustertrain_run_loss_seconds":
            for loss in ledger.losses()[:_MOST_LOSSES]:
                yield (loss.category, loss.cause), loss.seconds
        case "clustertrain_run_wall_seconds":
            yield (), ledger.wall_s
        case "clustertrain_run_ettr":
            if ledger.ettr is not None:
                yield (), ledger.ettr
        case "clustertrain_run_device_hours":
            yield (ledger.device,), ledger.device_hours
        case "clustertrain_run_ledger_time_seconds":
            yield (), now


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def write_metrics(run: RunDir, *, alive: bool) -> None:
    """Write metrics.prom. A storage that refuses is not reported: the next write comes in a few seconds, and
    the ledger itself is in the records."""
    with suppress(StorageError):
        run = run.with_patience(0)
        now = time.time()
        text = prometheus_text(run, ledger_of(run, alive=alive, now=now), now=now)
        run.store.write_atomic(run.prometheus_key, text.encode())


class MetricsFile:
    """Writes metrics.prom in a thread, until the end of the block."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, name="metrics.prom", daemon=True)

    def __enter__(self) -> MetricsFile:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        every_s = wait_s = _EVERY_S * (
            4 if self._run.store.location.is_s3 else 1
        )  # there each read costs money
        while not self._ended.wait(wait_s):
            began = time.monotonic()
            write_metrics(self._run, alive=True)
            wait_s = max(every_s, _SHARE * (time.monotonic() - began))
