"""A drill on a real cluster: the digits, struck on a node of their job, and stopped and started again."""

import pytest

from support.cluster_checks import DIGITS, drilled


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_digits_resume_exactly_on_two_nodes(make):
    run = make("digits", **DIGITS)
    report = drilled(run, "slurm", "rank,stop")
    rank, stop = report["outcomes"]
    assert rank["caused"] and "from memory" in rank["resumed"] and rank["lost_s"] > 0
    assert stop["caused"] and "from memory" not in stop["resumed"] and stop["lost_steps"] == 0
    assert report["kept"] == [] and list((run.folder / "runs").glob("digits*")) == []
