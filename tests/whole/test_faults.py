"""kill -9 in every phase of a run, of rank 0 and of another: nothing is lost, nothing is torn.

One run for each victim, which is killed once in each phase, one start of the group after another.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from clustertrain.checkpoints.manifest import CheckpointName, names
from clustertrain.checkpoints.read import verify
from support.whole_run import FAULTY, books_add_up, of_one_process, same_weights

FAULTS = Path(__file__).parent / "faults"
EVERY_STEPS, STEPS_PER_EPOCH, EPOCHS = 2, 7, 3
PHASES = ["stage", "rendezvous", "begin", "step", "snapshot", "write", "commit", "prune"]


@pytest.mark.faults
@pytest.mark.timeout(600)  # eight starts of the group: 50 s on two idle cores, 200 s on busy ones
@pytest.mark.parametrize(
    "of",
    # test_on_s3.py kills one of two ranks in CI.
    [
        "0 of 1",
        pytest.param("0 of 2", marks=pytest.mark.nightly),
        pytest.param("1 of 2", marks=pytest.mark.nightly),
    ],
)
def test_a_rank_killed_in_every_phase_costs_nothing_but_time(make_run, uninterrupted, tmp_path, of):
    victim, workers = map(int, of.split(" of "))
    for folder in ("marks", "ids"):
        (tmp_path / folder).mkdir()
    (tmp_path / "data.txt").write_text("data")
    run = make_run(  # the calls of a rehearsal would be counted as samples
        f"killed-{victim}",
        task="counted:Counted",
        args={"ids": str(tmp_path / "ids"), "step_s": 0.1},
        resources={"workers": workers, "cpus_per_worker": 0.5},
        train={"epochs": EPOCHS, "global_batch_size": 8, "log_every": 1, "sanity": False},
        data={"text": {"uri": str(tmp_path / "data.txt")}},
        checkpoint={"every": {"steps": EVERY_STEPS}, "keep_last": 2},
        failures={"retries": 5},  # fewer than the kills: each new checkpoint renews them
        env={
            "PYTHONPATH": os.pathsep.join([str(FAULTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "FAULTS_FOLDER": str(tmp_path / "marks"),
            "FAULTS_RANK": str(victim),
        },
    )
    output = run.start().end(0, within_s=500)
    assert [p for p in PHASES if (tmp_path / "marks" / p).exists()] == PHASES, output
    assert run.result.restarts == len(PHASES)
    every_death_is_named(run, victim)
    at_most_one_save_is_lost(run, tmp_path / "marks")
    seconds = books_add_up(run).by_category()
    assert {"steps", "restart", "lost", "prepare", "staging", "save"} <= seconds.keys()
    shelf = run.run_dir.checkpoints
    assert all(verify(shelf, name) for name in names(shelf))
    left = sorted(folder.name for folder in run.checkpoints.iterdir())
    assert left == [str(name) for name in names(shelf)], "nothing partial is left"
    samples_are_exact(run, tmp_path / "ids", workers)
    expected = uninterrupted(2) if workers == 2 else of_one_process(run)
    assert same_weights(run.weights(), expected)


def every_death_is_named(run, victim):
    """Rank and signal of each failure, and no other failure."""
    deaths = [event for event in run.events if event["kind"] == "worker_died"]
    assert [(death["rank"], death["signal"]) for death in deaths] == [(victim, signal.SIGKILL)] * len(PHASES)


def at_most_one_save_is_lost(run, marks):
    """After each kill the run resumes from the save before the one that was under way, or from that one."""
    deaths = {event["restart"]: event["step"] for event in run.events if event["kind"] == "worker_died"}
    resumed = {event["restart"]: event["step"] for event in run.events if event["kind"] == "resumed"}
    for restart, phase in enumerate(PHASES):
        began = CheckpointName.parse((marks / phase).read_text())  # the save in which the kill came
        done = began.step if began else deaths[restart]
        assert resumed.get(restart + 1, 0) >= done - EVERY_STEPS, (phase, deaths, resumed)
    assert resumed[len(PHASES)] >= 12, "every kill from the fourth on came after a new checkpoint"


def samples_are_exact(run, ids, workers):
    """A step that is done again takes the same samples, and every epoch takes each sample once."""
    taken = {}
    for rank, restart, lines in lines_of_ranks(run, ids):
        begun = run.attempt.restart(restart).plan.read().step
        thrown_away = 2 if workers > 1 else 0  # passes before the first step
        for step, line in enumerate(lines[thrown_away:], begun + 1):
            assert taken.setdefault((step, rank), line) == line
    steps = range(1, EPOCHS * STEPS_PER_EPOCH + 1)
    assert set(taken) == {(step, rank) for step in steps for rank in range(workers)}
    for epoch in range(EPOCHS):
        in_epoch = [line for (step, _), line in taken.items() if (step - 1) // STEPS_PER_EPOCH == epoch]
        assert Counter(number for line in in_epoch for number in line) == Counter(range(54))


def lines_of_ranks(run, ids):
    """(rank, restart, samples of each call) of every process that trained."""
    for started in (event for event in run.events if event["kind"] == "group_started"):
        for rank in started["ranks"]:
            if (file := ids / str(rank["pid"])).exists():  # or it was killed as its training began
                lines = file.read_text().splitlines()
                yield rank["rank"], started["restart"], [list(map(int, line.split())) for line in lines]


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "way",
    [
        "without Ray",
        pytest.param("with Ray", marks=pytest.mark.nightly),
        pytest.param("with a given Ray", marks=pytest.mark.nightly),  # where the controller is an actor
    ],
)
def test_a_rank_stopped_at_a_step_of_a_start_is_named_and_started_again(
    make_run, uninterrupted, tmp_path, way, request
):
    """No other rank waits for it yet, and a stopped process has no watchdog."""
    marks = tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "data.txt").write_text("data")
    faults = {"PYTHONPATH": str(FAULTS), "FAULTS_FOLDER": str(marks)}
    has_ray = way != "without Ray"
    given = {}
    if way == "with a given Ray":
        with pytest.MonkeyPatch.context() as of_its_nodes:
            for name, value in faults.items():
                of_its_nodes.setenv(name, value)
            given = request.getfixturevalue("cluster")
    limits = {"first_step": "40s" if has_ray else "15s"}
    run = make_run(
        "stopped",
        **FAULTY,
        data={"text": {"uri": str(tmp_path / "data.txt")}},
        failures={"retries": 9, "watchdog": limits},
        env=faults if has_ray else {},
    )
    if has_ray:
        output = run.start(**given).end(0, within_s=500, all_gone=not given)
        assert "Ray did not start the processes of the workers within 40 s" in output, output
    else:
        for of_ray_or_driver in ("process", "limits", "begin"):
            (marks / of_ray_or_driver).touch()
        output = run.start("--no-ray", **faults).end(0)
    assert len([*marks.iterdir()]) == 5, output
    named = output.count("does not answer; its process is in state T (stopped)")
    assert named == (3 if has_ray else 2), output
    assert same_weights(run.weights(), uninterrupted(2))
