"""A drill on a real cluster: the digits, struck in the pod of a rank."""

import pytest

from support.cluster_jobs import DIGITS, drill_report


@pytest.mark.nightly  # in CI: cli/drill/test_drill.py drills on this machine
@pytest.mark.timeout(1500)
def test_the_digits_resume_exactly_in_pods(make):
    report = drill_report(make("digits", **DIGITS), "kubernetes", "rank")
    (rank,) = report["outcomes"]
    assert report["exact"] and rank["caused"], report
    assert "from memory" in rank["resumed"] and rank["lost_s"] > 0
