"""What `check` expects saves and failures to cost, from what the last attempts measured."""

import pytest

from clustertrain.job.file import load_job
from clustertrain.observe.save_cost import save_cost_line
from clustertrain.run.folder import RunDir
from clustertrain.run.streams.event_log import EventLog

DAY_S = 86_400.0


@pytest.fixture
def job(tmp_path):
    return load_job(
        {
            "name": "digits",
            "storage": str(tmp_path),
            "task": "train:Digits",
            "train": {"epochs": 1, "batch_size": 4},
            "checkpoint": {"every": "auto"},
        }
    )


def write(job, attempt, kind, at_s, **fields):
    run = RunDir.newest(job.storage.location, job.name)
    EventLog(run.attempt(attempt).events).write(kind, **{"time": at_s, **fields})


def test_the_time_until_a_user_starts_a_failed_run_again_is_no_restart(job):
    write(job, 1, "checkpoint", DAY_S, blocking_s=1.0, write_s=2.0)
    without_failures = save_cost_line(job)
    write(job, 1, "worker_died", DAY_S + 1)
    write(job, 2, "group_started", 9 * DAY_S)
    assert save_cost_line(job) == without_failures
    write(job, 2, "worker_died", 10 * DAY_S)
    write(job, 2, "group_started", 10 * DAY_S + 3600)
    assert save_cost_line(job) != without_failures
