"""A drill on a real cluster: the digits, struck on a node of their job, and stopped and started again."""

import pytest

from support.cluster_jobs import DIGITS, drill_report


@pytest.mark.nightly  # in CI: cli/drill/test_drill.py drills on this machine
@pytest.mark.timeout(900)
def test_the_digits_resume_exactly_on_two_nodes(make):
    run = make("digits", **DIGITS)
    report = drill_report(run, "slurm", "rank,stop")
    rank, stop = report["outcomes"]
    assert report["exact"] and rank["caused"] and stop["caused"], report
    assert "from memory" in rank["resumed"] and rank["lost_s"] > 0
    assert "from memory" not in stop["resumed"] and stop["lost_steps"] == 0
    assert report["kept"] == [] and list((run.folder / "runs").glob("digits*")) == []
