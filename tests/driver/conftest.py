"""An attempt of a run, claimed, without a start of its workers."""

import pytest

from clustertrain.run_files.folder.run_dir import RunDir
from support.sample_records import sample_claim


@pytest.fixture
def attempt(tmp_path):
    attempt = RunDir.newest(str(tmp_path / "storage"), "digits").attempt(1)
    attempt.claim.create(sample_claim())
    return attempt
