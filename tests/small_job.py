"""A job as small as one can be, for tests of what is decided before anything starts."""

import pytest
import yaml

from clustertrain.job.file import parse_job

_CODE = """\
from clustertrain import Task
class T(Task):
    def __init__(self, lr=0.1): ...
"""


@pytest.fixture
def job(tmp_path):
    """Makes it, in a folder of the test's own, with sections changed or added."""
    (tmp_path / "m.py").write_text(_CODE)
    (tmp_path / "train.py").touch()

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
