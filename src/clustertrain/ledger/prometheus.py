"""The ledger as metrics.prom in the run's folder, for the textfile collector of node_exporter."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from clustertrain.errors import StorageError
from clustertrain.ledger.book import CATEGORIES, Ledger
from clustertrain.ledger.of_run import ledger_of
from clustertrain.run.folder import RunDir

_EVERY_S = 15.0
_SHARE = 100  # at most 1/100 of the time goes into the ledger, however many records a long run has
_MOST_LOSSES = 10
_SAMPLE = re.compile(
    r"^clustertrain_run_(ettr|device_hours|wall_seconds|ledger_time_seconds)\{.*\} (\d+\.\d+)$", re.M
)

METRICS = {
    "clustertrain_run_seconds": "Wall seconds of the run in a category of the ledger.",
    "clustertrain_run_loss_seconds": "The ten largest losses, in wall seconds by category and cause.",
    "clustertrain_run_wall_seconds": "Wall seconds from the first submission or start.",
    "clustertrain_run_ettr": "Effective training time ratio: productive / wall seconds.",
    "clustertrain_run_device_hours": "GPU-hours that the ranks held, or CPU-hours.",
    "clustertrain_run_ledger_time_seconds": "When these numbers were computed, in seconds since 1970.",
}
"""The metrics by their names, all of them gauges: a loss that is noticed late moves seconds to it."""


def prometheus_text(run: RunDir, ledger: Ledger, *, now: float) -> str:
    """The ledger of a run in Prometheus' text format."""
    lines = [f"# HELP {name} {meaning}\n# TYPE {name} gauge" for name, meaning in METRICS.items()]
    for name, value, labels in _samples(ledger, now):
        given = {"run": run.name, "generation": str(run.generation), **labels}
        text = ",".join(f'{key}="{_escaped(label)}"' for key, label in given.items())
        lines.append(f"{name}{{{text}}} {value:.6f}")
    return "\n".join(lines) + "\n"


def _samples(ledger: Ledger, now: float) -> Iterator[tuple[str, float, dict[str, str]]]:
    for category, seconds in ledger.by_category().items():
        of = CATEGORIES[category]
        labels = {"category": category, "goodput": of.goodput, "productive": str(of.productive).lower()}
        yield "clustertrain_run_seconds", seconds, labels
    for loss in ledger.losses()[:_MOST_LOSSES]:
        labels = {"category": loss.category, "cause": loss.cause}
        yield "clustertrain_run_loss_seconds", loss.seconds, labels
    yield "clustertrain_run_wall_seconds", ledger.wall_s, {}
    if ledger.ettr is not None:
        yield "clustertrain_run_ettr", ledger.ettr, {}
    yield "clustertrain_run_device_hours", ledger.device_hours, {"device": ledger.device}
    yield "clustertrain_run_ledger_time_seconds", now, {}


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Used(NamedTuple):
    """The effective training time ratio, or None if it is unknown, the device hours, and the wall seconds."""

    ettr: float | None
    device_hours: float
    wall_s: float

    @classmethod
    def of(cls, ledger: Ledger) -> Used:
        return cls(ledger.ettr, ledger.device_hours, ledger.wall_s)


def written_figures(run: RunDir, since: float) -> Used | None:
    """What metrics.prom says, if it was written at `since`, in seconds since 1970, or later."""
    text = (run.store.read_or_none(run.prometheus_key) or b"").decode(errors="replace")
    samples = {name: float(value) for name, value in _SAMPLE.findall(text)}
    if samples.get("ledger_time_seconds", 0.0) < since or "device_hours" not in samples:
        return None
    return Used(samples.get("ettr"), samples["device_hours"], samples["wall_seconds"])


def write_metrics(run: RunDir, *, alive: bool) -> None:
    """Write metrics.prom. A storage that refuses is no error: the file is a view of the records."""
    with suppress(StorageError):
        run, now = run.with_patience(0), time.time()
        text = prometheus_text(run, ledger_of(run, alive=alive, now=now), now=now)
        run.store.write_atomic(run.prometheus_key, text.encode())


@contextmanager
def metrics_written(run: RunDir) -> Iterator[None]:
    """Write metrics.prom in a thread, again and again until the end of the block."""
    every_s = _EVERY_S * (4 if run.store.location.is_s3 else 1)  # there each read costs money
    ended = threading.Event()

    def write() -> None:
        wait_s = every_s
        while not ended.wait(wait_s):
            began = time.monotonic()
            write_metrics(run, alive=True)
            wait_s = max(every_s, _SHARE * (time.monotonic() - began))

    thread = threading.Thread(target=write, name="metrics.prom", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
