"""Curves as rank 0 writes them, and as the programs that show them read them."""

import struct

from clustertrain.worker.loggers.curve import LoggedCurve
from clustertrain.worker.loggers.logger import Subject


def write_curve(attempt, values, *loggers, first_step=1, failed=False, within_s=30, **hyperparameters):
    """One start of the worker group writes `values`: {"train/loss": {step: value}}. Returns its warnings and
    notes."""
    events = {"warning": [], "note": []}
    subject = Subject(attempt, first_step, hyperparameters)
    curve = LoggedCurve(loggers, subject, lambda kind, text: events[kind].append(text))
    for name, points in values.items():
        kind, metric = name.split("/")
        for step, value in points.items():
            curve.add(kind, step, {metric: value})
    curve.close(failed=failed, within_s=within_s)
    return events["warning"], events["note"]


def mlflow_client(folder, monkeypatch):
    """MLflow's own reader of a file store."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    return MlflowClient(f"file://{folder}")


def mlflow_points(client, run_id, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def wandb_records(path):
    """The records of W&B's file: the log format of LevelDB, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def wandb_points(path, name):
    """The (step, value) of a metric."""
    for record in wandb_records(path):
        items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        if name in items:
            yield record.history.step.num, float(items[name])
