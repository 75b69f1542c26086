"""What a signal means to the program of a job, before its time limit and after it."""

import signal

import pytest

from clustertrain.launchers.scheduler.start import _meanings, _parsed
from waiting import wait_until


@pytest.mark.parametrize(("options", "state"), [([], "stopped"), (["--restart-code", "99"], "preempted")])
def test_every_signal_is_the_time_limits_once_the_time_is_over(options, state):
    options = ["--at-time-limit", "USR1", *options, "gridengine", "7", "job.yaml"]
    early = _meanings(_parsed(["--time-limit", "1e6", *options]))
    assert (early[signal.SIGUSR1], early[signal.SIGUSR2]) == (
        (state, "time_limit"),
        ("stopped", "terminated"),
    )
    late = _meanings(_parsed(["--time-limit", "0", *options]))
    wait_until(lambda: late[signal.SIGUSR2] == late[signal.SIGTERM] == ("stopped", "time_limit"), 60)
    assert late[signal.SIGUSR1] == (state, "time_limit")
