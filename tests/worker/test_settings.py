"""The loop's settings are those of the job file."""

from clustertrain.job.file import parse_job
from clustertrain.training.settings import EarlyStop
from clustertrain.worker.train import settings_of

JOB = """
name: a
task: m:T
train:
  epochs: 2
  batch_size: 8
  limit_batches: 5
  early_stop: {metric: accuracy, mode: max, patience: 3, min_delta: 0.01}
"""


def test_early_stopping_and_the_limit_reach_the_loop():
    settings = settings_of(parse_job(JOB, "job.yaml"))
    assert settings.early_stop == EarlyStop("accuracy", "max", 3, 0.01)
    assert settings.limit_batches == 5
    without = settings_of(parse_job("name: a\ntask: m:T\ntrain: {epochs: 2, batch_size: 8}\n", "job.yaml"))
    assert (without.early_stop, without.limit_batches) == (None, None)
