"""A rank that SIGKILL, an exception or a hang ends costs few steps: its node has a checkpoint in memory."""

import itertools
from pathlib import Path

import pytest

from clustertrain.node import variables
from support.whole_run import FAULTY, same_weights

SLOW = {"step_s": 0.2}  # a write is over before the next step
SAVING = {"every": {"epochs": 1}, "memory_every": 1}


def memory_of(run):
    """The folder of a running run in shared memory."""
    environment = Path(f"/proc/{run.driver_pid()}/environ").read_bytes().split(b"\0")
    (found,) = (each for each in environment if each.startswith(variables.MEMORY_DIR.encode()))
    return Path(found.decode().partition("=")[2])


CASES = [
    *itertools.product(["with Ray", "without Ray"], [("kill", 0), ("kill", 1), ("raise", 1), ("stop", 1)])
]
# One fault each way; test_faults.py kills and stops a rank in every phase.
IN_CI = [("with Ray", ("kill", 1)), ("without Ray", ("stop", 1))]


@pytest.mark.parametrize(
    ("start", "of"),
    [*IN_CI, *(pytest.param(*each, marks=pytest.mark.nightly) for each in CASES if each not in IN_CI)],
    indirect=["start"],
    ids=str,
)
def test_the_next_start_continues_from_memory(make_run, start, uninterrupted, tmp_path, of):
    fault, rank = of
    run = make_run(
        f"{fault}-{rank}",
        **{**FAULTY, "checkpoint": SAVING},
        args={"fault": fault, "rank": rank, "at_call": 14, "marker": str(tmp_path / "struck"), **SLOW},
        failures={"watchdog": {"step": "5s"}},
    )
    start(run).wait_for_event("group_started")
    memory = memory_of(run)
    assert memory.parent == Path("/dev/shm") and memory.is_dir()
    output = run.end(0)
    (died,) = (event for event in run.events if event["kind"] == "worker_died")
    (resumed,) = (event for event in run.events if event["kind"] == "resumed")
    ended = {"kill": (rank, 9), "raise": (rank, None), "stop": (1 - rank, None)}  # the other waits for it
    assert (died["rank"], died["signal"]) == ended[fault]
    watchdog = f"rank {1 - rank} was ended by its watchdog: no progress in phase 'step' for 5 s (failures."
    assert (watchdog in output) == (fault == "stop")
    assert resumed["in_memory"] and resumed["step"] + resumed["redone_steps"] == 11, output
    assert f"resuming after step {resumed['step']} (epoch 1), from the memory of the nodes" in output
    assert same_weights(run.weights(), uninterrupted(2))
    assert not memory.exists()


# In CI a stopped rank is in the test above.
@pytest.mark.parametrize(("fault", "rank"), [("kill", 1), pytest.param("stop", 0, marks=pytest.mark.nightly)])
def test_with_fsdp_the_part_of_the_dead_rank_is_in_memory(make_run, tmp_path, fault, rank):
    sections = {**FAULTY, "train": {**FAULTY["train"], "strategy": "fsdp"}}
    whole = make_run("whole", **sections, checkpoint=SAVING)
    whole.start().end(0)
    run = make_run(
        f"{fault}-{rank}",
        **sections,
        checkpoint=SAVING,
        args={"fault": fault, "rank": rank, "at_call": 13, "marker": str(tmp_path / "struck"), **SLOW},
        failures={"watchdog": {"step": "5s"}},
    )
    output = run.start().end(0)
    (resumed,) = (event for event in run.events if event["kind"] == "resumed")
    assert resumed["in_memory"] and resumed["step"] + resumed["redone_steps"] == 11, output
    parts = [each.run_dir.checkpoints.uri(each.result.checkpoint) for each in (run, whole)]
    names = {"model.shard-00001-of-00002.safetensors", "model.shard-00002-of-00002.safetensors"}
    for name in names:
        assert Path(parts[0], name).read_bytes() == Path(parts[1], name).read_bytes(), name
