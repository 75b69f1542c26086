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
  limit_batches: 5
  early_stop: {metric: accuracy, mode: max, patience: 3, min_delta: 0.01}
"""


def test_the_loop_gets_the_metric_of_the_best_checkpoint():
    best = "checkpoint: {keep_best: {metric: accuracy, mode: max}}\n"
    assert settings_of(parse_job(JOB + best, "job.yaml")).keep_best == "accuracy"
    assert settings_of(parse_job(JOB, "job.yaml")).keep_best is None


def test_early_stopping_and_the_limit_reach_the_loop():
    settings = settings_of(parse_job(LIMITED, "job.yaml"))
    assert vars(settings.early_stop) == vars(EarlyStop("accuracy", "max", 3, 0.01))
    assert settings.limit_batches == 5
    without = settings_of(parse_job(JOB, "job.yaml"))
    assert (without.early_stop, without.limit_batches) == (None, None)


def test_the_steps_between_two_copies_in_memory_reach_the_loop():
    job = JOB.replace("4}", "4, strategy: fsdp}") + "checkpoint: {memory_every: 5}\n"
    assert settings_of(parse_job(job, "job.yaml")).memory_every == 5
    assert settings_of(parse_job(JOB, "job.yaml")).memory_every is None
