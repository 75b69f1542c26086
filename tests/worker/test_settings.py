"""The keys of a job file become the settings of the training loop."""

from clustertrain.job.file import parse_job
from clustertrain.training.settings import EarlyStop
from clustertrain.worker.train import settings_of

JOB = "name: a\ntask: m:C\ntrain: {epochs: 1, batch_size: 4}\n"
LIMITED = """
name: a
task: m:T
train:
  epochs: 2
  batch_size: 8
  strategy: fsdp
  limit_batches: 5
  early_stop: {metric: accuracy, mode: max, patience: 3, min_delta: 0.01}
checkpoint:
  keep_best: {metric: accuracy, mode: max}
  memory_every: 5
"""


def test_the_keys_reach_the_loop():
    settings = settings_of(parse_job(LIMITED, "job.yaml"))
    assert vars(settings.early_stop) == vars(EarlyStop("accuracy", "max", 3, 0.01))
    assert (settings.limit_batches, settings.keep_best, settings.memory_every) == (5, "accuracy", 5)
    without = settings_of(parse_job(JOB, "job.yaml"))
    assert (without.early_stop, without.limit_batches) == (None, None)
    assert (without.keep_best, without.memory_every) == (None, None)
