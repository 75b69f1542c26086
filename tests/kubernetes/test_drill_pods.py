"""A drill on a real cluster: the digits, struck in the pod of a rank."""

import pytest

from support.cluster_checks import DIGITS, drilled


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_the_digits_resume_exactly_in_pods(make):
    (rank,) = drilled(make("digits", **DIGITS), "kubernetes", "rank")["outcomes"]
    assert rank["caused"] and "from memory" in rank["resumed"] and rank["lost_s"] > 0
