"""Ray starts while the code is checked, and nothing of it is left if the start ends there."""

import signal

import pytest

from clustertrain.waiting import wait_until
from whole_run import ONE_WORKER

CHECK = {"task": "faulty:Faulty", "args": {"fault": "raise", "rank": 0, "at_call": 1, "step_s": 8.0}}
TRAIN = {"epochs": 1, "batch_size": 4}


@pytest.mark.parametrize(
    ("number", "code", "within_s"),
    [(None, 2, 0.0), (signal.SIGINT, 130, 0.0), (signal.SIGKILL, -signal.SIGKILL, 10.0)],
    ids=["refused", "Ctrl-C", "kill -9"],
)
def test_a_start_that_ends_in_the_check_leaves_no_ray_and_no_attempt(make_run, number, code, within_s):
    run = make_run("early", train=TRAIN, **CHECK, **ONE_WORKER).start(checked=True)
    assert wait_until(lambda: "raylet" in " ".join(run.left(0).values()), 60, 0.05), "Ray starts meanwhile"
    if number is not None:
        run.process.send_signal(number)
    output = run.end(code, all_gone=False)
    assert run.left(within_s) == {}
    assert run.run_dir.attempts() == []
    if number is None:
        assert "rehearsal: Faulty.loss() raised ValueError" in output
    assert "Ray" not in output
