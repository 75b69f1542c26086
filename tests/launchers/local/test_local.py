"""What this machine has room for, and what `clustertrain run` does where nothing starts."""

import os

import pytest

from clustertrain.errors import ClusterError
from clustertrain.launchers.known_runs import known_runs
from clustertrain.launchers.local.run import _local_world_sizes, run_local
from clustertrain.observe.screen import open_screen
from clustertrain.run.admission import Options
from clustertrain.run.folder import RunDir
from small_job import job

__all__ = ["job"]


def test_too_few_cpus_are_an_arithmetic(job, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ClusterError) as caught:
        run_local(job(resources={"workers": 5}), "job.yaml", Options(), open_screen())
    assert known_runs() == ([], [])
    assert "5 workers × 1 CPUs = 5 CPUs, and this machine has 2" in str(caught.value)
    assert "cpus_per_worker to 0.4" in str(caught.value)
    assert RunDir.newest(job().storage.uri, "a").attempts() == []


def test_a_range_of_workers_takes_what_fits(job, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    elastic = job(resources={"workers": [1, 8]}, train={"epochs": 2, "global_batch_size": 8})
    # 8 samples divide by 1, 2, 4 and 8; 3 CPUs hold 1 and 2 of these.
    assert _local_world_sizes(elastic) == [1, 2]
