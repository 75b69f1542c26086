"""A rank that SIGKILL ends costs no step: the others keep the last one in memory."""

from pathlib import Path

import pytest

from whole_run import FAULTY, same_weights

MEMORY = Path("/dev/shm")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_next_start_continues_after_the_last_step(make_run, uninterrupted, tmp_path, rank):
    before = set(MEMORY.iterdir())
    run = make_run(
        f"killed-{rank}",
        **{**FAULTY, "checkpoint": {"every": {"epochs": 1}}},
        args={"fault": "kill", "rank": rank, "at_call": 14, "marker": str(tmp_path / "struck")},
    )
    output = run.start().end(0)
    (died,) = (event for event in run.events if event["kind"] == "worker_died")
    (resumed,) = (event for event in run.events if event["kind"] == "resumed")
    assert (died["rank"], died["signal"]) == (rank, 9)
    assert (resumed["in_memory"], resumed["step"], resumed["redone_steps"]) == (True, died["step"], 0), output
    assert (
        resumed["step"] == 11 and "resuming after step 11 (epoch 1), from the memory of the nodes" in output
    )
    assert same_weights(run.weights(), uninterrupted(2))
    assert set(MEMORY.iterdir()) <= before, "nothing is left"
