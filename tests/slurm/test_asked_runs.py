"""The commands that ask a run, on a real cluster: each as a user gives it, all on one run of two nodes."""

import pytest

from slurm.trained import FAULTY
from support.cluster_checks import LONG, ask_all_and_why_it_failed

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]


def test_a_run_is_asked_for_all_it_knows_and_then_why_it_failed(make):
    run = make("asked", **{**FAULTY, **LONG, "args": {"step_s": 0.2}}).submit()
    ask_all_and_why_it_failed(run, r"node\d", "ps -o comm= -p $CLUSTERTRAIN_PID", "FAILED")
