"""A job as small as one can be, for tests of what is decided before anything starts."""

from functools import cache

import pytest
import yaml

from clustertrain.job.file import parse_job
from clustertrain.node.installed import installed_packages
from clustertrain.run_files import provenance

_CODE = """\
from clustertrain import Task
class T(Task):
    def __init__(self, lr=0.1): ...
"""

_PACKAGES = cache(installed_packages)  # they stay the same, and reading them takes a tenth of a second


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes it, in a folder of the test's own, with sections changed or added."""
    monkeypatch.setattr(provenance, "installed_packages", _PACKAGES)
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
