"""The columns that `ls --args` and `ls --metric` add: values of the job's args, and of a metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clustertrain.checkpoints.retention import best_of
from clustertrain.job.identity import hyperparameters
from clustertrain.job.model import Job
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.streams.events import Record
from clustertrain.run_files.streams.history import curve

Cell = str | int | float | None
"""A value of a table, or None if it is unknown."""


@dataclass(frozen=True)
class MetricColumn:
    """A metric, and whether its largest ("max") or smallest ("min") value is the best.

    If `mode` is None, the `checkpoint.keep_best` of each job determines it.
    """

    name: str
    mode: str | None = None

    @classmethod
    def parsed(cls, text: str) -> MetricColumn:
        """Parse `accuracy`, `accuracy:max` or `loss:min`."""
        name, _, mode = text.rpartition(":")
        return cls(name, mode) if mode in ("max", "min") else cls(text)

    @property
    def last_key(self) -> str:
        return f"metrics.{self.name}.last"

    @property
    def best_key(self) -> str:
        return f"metrics.{self.name}.best"


@dataclass(frozen=True)
class Columns:
    """The selected columns. Their keys are `args.NAME`, `metrics.NAME.last` and `metrics.NAME.best`."""

    args: tuple[str, ...] = ()
    metrics: tuple[MetricColumn, ...] = ()

    @classmethod
    def parsed(cls, args: Iterable[str], metrics: Iterable[str]) -> Columns:
        """Parse the options; each may contain several names, separated by commas."""
        return cls(tuple(_split(args)), tuple(MetricColumn.parsed(text) for text in _split(metrics)))

    @property
    def headers(self) -> dict[str, str]:
        """The header of each column by its key."""
        headers = {_key(name): name for name in self.args}
        for metric in self.metrics:
            headers |= {metric.last_key: metric.name, metric.best_key: f"best {metric.name}"}
        return headers

    def of_sweep(self, points: Sequence[Sequence[Job]]) -> Columns:
        """Return these columns, with the args and keys of `train` that differ between the points.

        If no metric is selected, they get the metric of `checkpoint.keep_best`, or else the loss.

        Args:
            points: the jobs of each point, as for `values`.
        """
        known = [hyperparameters(*jobs) for jobs in points]
        keys = dict.fromkeys(key for each in known for key in each)
        differing = (key for key in keys if len({each.get(key) for each in known}) > 1)
        best = (job.checkpoint.keep_best for jobs in points for job in jobs[-1:])
        metrics = self.metrics or tuple(
            dict.fromkeys(MetricColumn(each.metric) for each in best if each is not None)
        )
        args = (*self.args, *(key.removeprefix("args.") for key in differing))
        return Columns(tuple(dict.fromkeys(args)), metrics or (MetricColumn("loss", "min"),))

    def values(self, jobs: Sequence[Job], run: RunDir | None) -> dict[str, Cell]:
        """Return the values of a run by their keys.

        Args:
            jobs: those with which the steps of the run were trained, or none if they are not known.
            run: None if this machine does not see its storage.

        Raises:
            StorageError: the storage refuses.
        """
        known = hyperparameters(*jobs)
        values: dict[str, Cell] = {_key(name): known.get(_key(name)) for name in self.args}
        records = curve(run) if self.metrics and run is not None else []
        for metric in self.metrics:
            points = _points(records, metric.name)
            mode = metric.mode or _mode_of(jobs[-1] if jobs else None, metric.name)
            best = best_of(points, mode) if mode is not None else None
            values[metric.last_key] = points[-1][0] if points else None
            values[metric.best_key] = best[0] if best is not None else None
        return values

    def notes(self, rows: Sequence[Mapping[str, Cell]]) -> list[str]:
        """Return a note for each column that has no value in any of the rows."""
        if not rows:
            return []
        known = {key for row in rows for key, value in row.items() if value is not None}
        notes = [f"no run has {_key(name)}" for name in self.args if _key(name) not in known]
        for metric in self.metrics:
            if metric.last_key not in known:
                notes.append(f"no run has measured {metric.name}; the column FIGURES names what was measured")
            elif metric.best_key not in known:
                notes.append(
                    f"the best {metric.name} is unknown, because no job has it in checkpoint.keep_best; "
                    f"use --metric {metric.name}:max or --metric {metric.name}:min"
                )
        return notes


NO_COLUMNS = Columns()


def _split(options: Iterable[str]) -> list[str]:
    return [name.strip() for option in options for name in option.split(",") if name.strip()]


def _key(name: str) -> str:
    """Return the key of a name: `lr` and `args.lr` are an arg, `train.batch_size` is a key of `train`."""
    return name if name.startswith(("args.", "train.")) else f"args.{name}"


def _points(records: Sequence[Record], metric: str) -> list[tuple[float, int]]:
    """Return the values of a metric and their steps, from the evaluations or else from training steps."""
    for kind in ("eval", "train"):
        found = [
            (float(value), int(record["step"]))
            for record in records
            if record["kind"] == kind and isinstance(value := record.get(metric), int | float)
        ]
        if found:
            return found
    return []


def _mode_of(job: Job | None, metric: str) -> str | None:
    best = job.checkpoint.keep_best if job is not None else None
    return best.mode if best is not None and best.metric == metric else None
