"""The curve as a run of MLflow: one for all starts of a generation, found again by its tags.

Server and experiment are given by MLflow's own variables. Without a server, the curve is in a file store
that the runs of the storage share.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

# No telemetry, as with Ray, unless the user sets it. MLflow reads the variable when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

# Both kinds of store, since a thread should not import them later.
import mlflow.store.tracking.file_store
import mlflow.store.tracking.rest_store  # noqa: F401
from mlflow import MlflowClient
from mlflow.entities import Metric

from clustertrain.job.loggers import MLFLOW_URI
from clustertrain.worker.loggers.logger import Point, Subject

_FILE_STORE = "MLFLOW_ALLOW_FILE_STORE"  # MLflow 3.17 refuses a file store without it
_EXPERIMENT, _EXPERIMENT_ID, _DEFAULT_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "0"
_MOST_METRICS = 1000  # of one request
_MOST_CHARACTERS = 500  # of a parameter; newer servers take 6000
_NOT_IN_NAMES = re.compile(r"[^\w/.\- :]")  # "acc@1": with one such name MLflow refuses the whole request
CURVE_TAG, RUN_TAG = "clustertrain.curve", "clustertrain.run"


class MlflowRun:
    """Writes to one run of MLflow.

    MLflow keeps every value of a step, so the steps that a restart repeats are left out if an earlier start
    has written them.
    """

    def __init__(self, subject: Subject) -> None:
        uri = os.environ.get(MLFLOW_URI) or f"file://{subject.run.mlflow_path}"
        if "://" not in uri or uri.startswith("file:"):
            os.environ.setdefault(_FILE_STORE, "true")
        self._client = MlflowClient(uri)
        experiment, curve = self._experiment(), subject.curve_id
        found = self._client.search_runs([experiment], f"tags.`{CURVE_TAG}` = '{curve}'", max_results=1)
        if found:
            self._client.update_run(found[0].info.run_id, status="RUNNING")
        else:
            tags = {CURVE_TAG: curve, RUN_TAG: subject.run.uri}
            found = [self._client.create_run(experiment, tags=tags, run_name=subject.label)]
        self._id: str = found[0].info.run_id
        self._last_steps: dict[str, int] = {}
        self._write_hyperparameters(subject, found[0].data.params)
        self.place = f"{self._client.tracking_uri}, experiment {experiment}, run {self._id}"

    def _experiment(self) -> str:
        """Return the id of the experiment; create one if there is none of that name."""
        if (name := os.environ.get(_EXPERIMENT)) is None:
            return os.environ.get(_EXPERIMENT_ID, _DEFAULT_EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))

    def _write_hyperparameters(self, subject: Subject, known: Mapping[str, str]) -> None:
        """Write the hyperparameters that the run does not have.

        MLflow refuses another value for one that it has: a run that continues with a changed job keeps the
        first, and has the new one as a tag.
        """
        given = subject.hyperparameters.items()
        texts = {_NOT_IN_NAMES.sub("_", key): str(value)[:_MOST_CHARACTERS] for key, value in given}
        for key, text in texts.items():
            if key not in known:
                self._client.log_param(self._id, key, text)
            elif known[key] != text:
                self._client.set_tag(self._id, f"changed.{key}", text)

    def write(self, points: Sequence[Point]) -> None:
        metrics = [
            Metric(name, value, int(point.time_s * 1000), point.step)
            for point in points
            for given, value in point.values.items()
            if point.step > self._last_step(name := _NOT_IN_NAMES.sub("_", given))
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + _MOST_METRICS])

    def _last_step(self, name: str) -> int:
        """Return the last step that earlier starts have written, or -1 if there is none."""
        if name not in self._last_steps:
            history = self._client.get_metric_history(self._id, name)
            self._last_steps[name] = max((metric.step for metric in history), default=-1)
        return self._last_steps[name]

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


open_logger = MlflowRun
