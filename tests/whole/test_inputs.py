"""A mistake has its exit code, two or three lines and no traceback, before a start and in the workers.

One whole run for each road that an error takes; every single refusal is tested where it is raised.
"""

from whole_run import ONE_WORKER

TRAIN = {"epochs": 1, "batch_size": 4, "sanity": False}  # what a rehearsal would find is left to the workers


def test_a_task_that_does_not_import_starts_nothing(make_run):
    run = make_run("broken", task="broken_import:Task", train=TRAIN, **ONE_WORKER)
    output = run.start(checked=True).end(2)
    assert run.run_dir.attempts() == []
    assert "Traceback" not in output
    assert "No module named 'no_such_package'" in output
    assert "broken_import.py:1" in output


def test_a_batch_larger_than_the_data(make_run):
    run = make_run("large", task="faulty:Faulty", train={**TRAIN, "batch_size": 64}, **ONE_WORKER)
    output = run.start().end(2)
    assert run.result.restarts == 0
    assert "Traceback" not in output
    assert "64" in output
    assert "54" in output
