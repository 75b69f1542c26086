"""What this machine has room for, and what `clustertrain run` does where nothing starts."""

import os

import pytest
import yaml

from clustertrain.errors import ClusterError
from clustertrain.jobfile import parse_job
from clustertrain.launchers.local import _that_fit, run_local
from clustertrain.observe.progress import open_screen
from clustertrain.run_dir import RunDir
from clustertrain.starting import Options


@pytest.fixture
def job(tmp_path):
    def make(**changes):
        sections = {
            "name": "a",
            "task": "m:T",
            "train": {"epochs": 2, "batch_size": 8},
            "storage": str(tmp_path / "runs"),
            "code": str(tmp_path),
            **changes,
        }
        return parse_job(yaml.safe_dump(sections), "job.yaml")

    return make


def test_too_few_cpus_are_an_arithmetic(job, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ClusterError) as caught:
        run_local(job(resources={"workers": 5}), Options(), open_screen())
    assert "5 workers × 1 CPUs = 5 CPUs, and this machine has 2" in str(caught.value)
    assert "cpus_per_worker to 0.4" in str(caught.value)
    assert RunDir.newest(job().storage.uri, "a").attempts() == []


def test_a_range_of_workers_takes_what_fits(job, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    elastic = job(resources={"workers": [1, 8]}, train={"epochs": 2, "global_batch_size": 8})
    assert _that_fit(elastic) == [1, 2]  # 8 samples divide by 1, 2, 4 and 8; 3 CPUs hold 1 and 2 of these
