"""A mistake has its exit code, two or three lines and no traceback, before a start and in the workers.

One whole run for each road that an error takes; every single refusal is tested where it is raised.
"""

import pytest

from whole_run import ONE_WORKER

TRAIN = {"epochs": 1, "batch_size": 4, "sanity": False}  # what a rehearsal would find is left to the workers


def refused(run, code):
    """Runs until the refusal; returns its message."""
    output = run.start().end(code)
    assert "Traceback" not in output
    assert run.result.restarts == 0
    return output


def test_a_task_that_does_not_import_starts_nothing(make_run):
    run = make_run("broken", task="broken_import:Task", train=TRAIN, **ONE_WORKER)
    output = run.start(checked=True).end(2)
    assert run.run_dir.attempts() == []
    assert "Traceback" not in output
    assert "No module named 'no_such_package'" in output
    assert "broken_import.py:1" in output


def test_a_batch_larger_than_the_data(make_run):
    large = {"task": "faulty:Faulty", "train": {**TRAIN, "batch_size": 64}}
    output = refused(make_run("large", **large, **ONE_WORKER), 2)
    assert "64" in output
    assert "54" in output


@pytest.mark.nightly  # the same road as above; the code 4 of a worker's DataError: test_storage_faults.py
def test_a_checksum_that_differs(make_run, tmp_path):
    (tmp_path / "data.txt").write_text("data")
    data = {"d": {"uri": str(tmp_path / "data.txt"), "sha256": "0" * 64}}
    output = refused(make_run("checksum", task="faulty:Faulty", train=TRAIN, data=data, **ONE_WORKER), 4)
    assert "0" * 64 in output
    assert "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7" in output
