"""CLUSTERTRAIN_REQUIRE turns skips into failures: seen by an inner pytest with this conftest."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from support.commands import ran

pytestmark = pytest.mark.slow

TESTS = """
import pytest

@pytest.mark.gpu
@pytest.mark.skipif(True, reason="no CUDA device")
def test_gpu(): pass

@pytest.mark.skipif({skip_local}, reason="something is missing")
def test_local(): pass

@pytest.mark.faults
def test_long(): pass

@pytest.mark.nightly
def test_longer(): pass

@pytest.mark.faults
@pytest.mark.gpu
@pytest.mark.skipif(True, reason="no CUDA device")
def test_long_of_both(): pass
"""


@pytest.mark.parametrize(
    ("required", "skip_local", "outcome"),
    [
        ("", True, "5 skipped"),
        ("local", False, "1 passed, 4 skipped"),
        ("local", True, "4 skipped, 1 error"),
        ("local,gpu", True, "3 skipped, 2 errors"),
        ("faults,nightly", True, "2 passed, 3 skipped"),
        ("faults,gpu", True, "1 passed, 2 skipped, 2 errors"),
        ("slrum", False, "CLUSTERTRAIN_REQUIRE names slrum"),
    ],
)
def test_a_required_component_may_not_be_skipped(tmp_path, required, skip_local, outcome):
    tests = Path(__file__).parent
    shutil.copy(tests / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS.format(skip_local=skip_local))
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", tmp_path]
    # Without the options of this pytest: `-n 4` would start four processes for each case.
    own = {"CLUSTERTRAIN_REQUIRE": required, "PYTHONPATH": str(tests), "PYTEST_ADDOPTS": ""}
    done = ran(argv, cwd=tmp_path, env={**os.environ, **own})
    assert outcome in done.stdout + done.stderr
    assert (done.returncode == 0) == ("error" not in outcome and "slrum" not in outcome)
