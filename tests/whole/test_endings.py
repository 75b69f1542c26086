"""However a run ends: its cause is named, its storage is valid, and nothing of it is left."""

import os
import re
import select
import signal
import tempfile
from pathlib import Path

import pytest

from clustertrain.checkpoints.manifest import names
from clustertrain.checkpoints.read import verify
from clustertrain.supervise.private_folder import private_folder, remove
from support.leftovers import children, kill_together
from support.whole_run import ONE_WORKER, books_add_up

SECTIONS = {
    "task": "faulty:Faulty",
    "train": {"epochs": 40, "batch_size": 4, "log_every": 1},
    "checkpoint": {"every": {"steps": 5}},
}


def checkpoints_of(run):
    """All checkpoints of a run, every byte verified."""
    shelf = run.run_dir.checkpoints
    return [verify(shelf, name) for name in names(shelf)]


def test_signals_twice_end_it_at_once_and_storage_is_valid(make_run, tmp_path):
    """Its loader processes are killed as well, and what they leave among the temporary files and in shared
    memory is gone."""
    each_step = {"checkpoint": {"every": {"steps": 1}}, "train": {**SECTIONS["train"], "loader_workers": 2}}
    run = make_run("twice", args={"step_s": 2.0}, **SECTIONS | each_step, **ONE_WORKER)
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as temporary:
        run.start(TMPDIR=temporary, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "kept"))
        run.wait_for_event("checkpoint")
        (private,) = Path(temporary).glob("ct-*")
        shared = Path("/dev/shm")
        assert [*shared.glob(f"sem.{private.name}-*")], "the queues of the loader processes"
        _end_by_two_signals(run)
        assert [*Path(temporary).iterdir()] == []
        assert [*shared.glob(f"*{private.name}*")] == []


def _end_by_two_signals(run):
    run.process.send_signal(signal.SIGTERM)
    run.wait_for_event("stop_requested")
    run.process.send_signal(signal.SIGTERM)
    output = run.end(75, within_s=20)
    assert "stopped (interrupted_twice)" in output
    assert checkpoints_of(run)


def test_ctrl_c_before_training_ends_it_at_once(make_run):
    run = make_run("early", **SECTIONS, **ONE_WORKER).start()
    run.wait_for_event("ray_started")
    run.process.send_signal(signal.SIGINT)
    assert "stopped (interrupt)" in run.end(130, within_s=20)


def test_ctrl_c_right_after_the_claim_leaves_a_result(make_run, tmp_path):
    """While git tells the state of the code, which takes seconds in a large repository."""
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nkill -INT $PPID\n")
    git.chmod(0o700)
    run = make_run("claimed", **SECTIONS, **ONE_WORKER)
    run.start("--no-ray", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "stopped (interrupt)" in run.end(130, within_s=60)


def test_no_rank_outlives_all_that_supervise_it(make_run):
    """`clustertrain run` and both guardians are killed together. The next start ends what Ray then leaves."""
    run = make_run("orphaned", args={"step_s": 0.2}, **SECTIONS, **ONE_WORKER)
    run.start().wait_for_event("checkpoint")
    rank = next(e for e in run.events if e["kind"] == "group_started")["ranks"][0]["pid"]
    watched = os.pidfd_open(rank)
    guardian = run.guardian_pid()
    kill_together(run.process.pid, guardian, *children(guardian))
    assert select.select([watched], [], [], 10)[0], run.left(0)
    os.close(watched)
    run.process.communicate()
    remove(private_folder())
    assert run.left(10) == {}
    assert checkpoints_of(run)


VICTIMS = {
    "driver": (lambda run: [run.driver_pid()], "the driver was killed by signal 9"),
    "raylet": (
        lambda run: [run.ray_pid("raylet")],
        r"Ray's raylet \(pid \d+\) was killed by signal 9 \(SIGKILL\)",
    ),
    "gcs": (lambda run: [run.ray_pid("gcs_server")], r"Ray's gcs_server \(pid \d+\) was killed by signal 9"),
    "guardian": (lambda run: [run.guardian_pid()], "the driver ended with its guardian, which was killed"),
    "second": (lambda run: children(run.guardian_pid()), "the driver was killed by signal 9"),
    "guardians": (
        lambda run: [run.guardian_pid(), *children(run.guardian_pid())],
        "the driver ended with its guardian, which was killed",
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "victims",
    [
        ("driver",),
        pytest.param(("raylet",), marks=pytest.mark.nightly),
        pytest.param(("gcs", "guardian"), marks=pytest.mark.nightly),
        pytest.param(("second", "guardians"), marks=pytest.mark.nightly),
    ],
    ids="-".join,
)
def test_a_run_goes_on_without_a_process_that_was_killed(make_run, victims):
    """The first one is killed in a step, a second one when the workers have started again."""
    run = make_run(
        "bereft", args={"step_s": 0.2}, **SECTIONS | {"train": {"epochs": 3, "batch_size": 4}}, **ONE_WORKER
    )
    run.start().wait_for_event("checkpoint")
    for restart, victim in enumerate(victims):
        if restart:
            run.wait_for_start(restart)
        kill_together(*VICTIMS[victim][0](run))
    output = run.end(0, within_s=240)
    for n, victim in enumerate(victims, 1):
        again = rf"restarting the driver and the workers \([1-{n}] of at most 3 in a row"
        assert re.search(rf"{VICTIMS[victim][1]}.*\n.*{again}", output), output
    assert (run.result.state, run.result.restarts) == ("done", len(victims))
    assert checkpoints_of(run)
    ledger = books_add_up(run)
    restarts_s = [loss.seconds for loss in ledger.losses() if loss.category == "restart"]
    assert len(restarts_s) == len(victims) and min(restarts_s) > 0.5, ledger.losses()
    (repository,) = run.attempt.provenance.read().source.repositories
    assert repository.commit is not None or repository.note


def test_a_hang_is_named_within_30_s_with_the_defaults(make_run, tmp_path):
    """Rank 1 stops in mid-epoch, so that it cannot even write its stacks; rank 0 waits for it."""
    hang = {"fault": "stop", "rank": 1, "at_call": 18, "marker": str(tmp_path / "struck")}
    train = {"epochs": 3, "batch_size": 3, "log_every": 1}  # 9 steps an epoch; two calls are discarded
    run = make_run("hangs", task="faulty:Faulty", args=hang, train=train)
    output = run.start().end(0)
    assert re.search(
        r"rank 0 was ended by its watchdog: no progress in phase 'step' for 2\d(\.\d+)? s: the slowest of "
        r"the last 11 steps took \S+ s, and the limit is 10 times that, at least 20 s and at most 600 s "
        r"\(failures\.watchdog\.step sets another\)",
        output,
    ), output
    assert re.search(r"rank 1 \(.*\) does not answer; its process is in state T \(stopped\)", output)
    stacks = run.rank_log(0).partition("the stacks of all threads follow")[2]
    assert "loop.py" in stacks, run.rank_log(0)
    stopped_at_s = (tmp_path / "struck").stat().st_mtime
    times_s = {e["kind"]: e["time"] - stopped_at_s for e in reversed(run.events)}
    assert times_s["watchdog"] < times_s["restarting"] <= 30, times_s
    assert (run.result.state, run.result.step, run.result.restarts) == ("done", 27, 1)
    assert 18 < books_add_up(run).by_category()["hang"] < 32
