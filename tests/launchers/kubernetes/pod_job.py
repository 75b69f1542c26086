"""A job that runs in pods, as small as one can be, with sections changed or added."""

import pytest
import yaml

from clustertrain.job.file import load_job


@pytest.fixture
def make_job(tmp_path):
    def make(**changes):
        (tmp_path / "m.py").write_text("x = 1\n")
        sections = {
            "name": "run-1",
            "task": "m:T",
            "train": {"epochs": 1, "batch_size": 4},
            "image": "localhost/clustertrain:dev",
            **changes,
        }
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(sections))
        return load_job(tmp_path / "job.yaml")

    return make
