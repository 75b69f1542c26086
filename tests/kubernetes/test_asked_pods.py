"""The commands that ask a run, on a real cluster: each as a user gives it, all on one RayJob."""

import pytest

from clustertrain.launchers.source_state import read_source
from kubernetes.rayjob_runs import FAULTY
from support.cluster_checks import LONG, ask_all_and_why_it_failed
from support.whole_run import CODE

pytestmark = [pytest.mark.timeout(900), pytest.mark.nightly]  # in CI: launchers/kubernetes/test_reach.py


def test_a_run_is_asked_for_all_it_knows_and_then_why_it_failed(make):
    run = make("asked", **{**FAULTY, **LONG, "args": {"step_s": 0.3}}).submit()
    ask_all_and_why_it_failed(run, r"\S+", "cat /proc/$CLUSTERTRAIN_PID/comm", "Failed")
    commits = [each.commit for each in run.attempt.provenance.read().source.repositories]
    assert commits == [each.commit for each in read_source([str(CODE)]).repositories]
