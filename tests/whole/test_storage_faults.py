"""Storage that is full, that turns read-only, that is damaged, and two attempts alive at once."""

import os
import signal
import subprocess

import pytest

from clustertrain.checkpoints.manifest import names
from clustertrain.checkpoints.read import newest_verified, verify
from clustertrain.run_files.streams.history import events_of_attempt
from clustertrain.supervise.guardian import descendants
from support.commands import ran
from support.whole_run import ONE_WORKER, of_one_process, same_weights

pytestmark = pytest.mark.faults

CHECKPOINT_BYTES = 8 << 20  # heavy.BALLAST_BYTES; the rest of it weighs nothing
TRAIN = {"epochs": 3, "batch_size": 4, "log_every": 1}


def mount(*arguments):
    done = ran(["mount", *map(str, arguments)])
    if done.returncode != 0:
        pytest.skip(f"mount {' '.join(map(str, arguments))}: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, with room for one checkpoint and not for two."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={CHECKPOINT_BYTES * 7 // 4}", "clustertrain-test", place)
    yield place
    while os.path.ismount(place):  # one may lie on another
        subprocess.run(["umount", "--recursive", "--lazy", place], check=True)


def steps_of_whole_checkpoints(run):
    shelf = run.run_dir.checkpoints
    assert all(verify(shelf, name) for name in names(shelf))
    assert sorted(p.name for p in run.checkpoints.iterdir()) == [str(name) for name in names(shelf)]
    return [name.step for name in names(shelf)]


@pytest.mark.timeout(600)  # three runs
def test_a_full_disk_then_a_read_only_one_then_a_damaged_checkpoint(disk, make_run, tmp_path):
    """One run that meets all three, and ends with the bits of one that met none. The second start waits after
    its first save, until the disk is read-only."""
    (go_on := tmp_path / "go-on").touch()
    run = make_run(
        "unlucky",
        task="heavy:Heavy",
        args={"until": str(go_on), "at_call": 6, "step_s": 0.1},
        train=TRAIN | {"batch_size": 8},
        checkpoint={"every": {"steps": 4}, "keep_last": 2},
        storage=str(disk / "runs"),
        **ONE_WORKER,
    )
    output = run.start().end(4)
    assert output.count("was not written: ") == 3, "two are passed over, and the third is the end"
    assert f"No space left on device: {CHECKPOINT_BYTES} bytes did not fit" in output
    assert "failed (data)" in output
    assert steps_of_whole_checkpoints(run) == [4]

    mount("-o", f"remount,size={20 * CHECKPOINT_BYTES}", disk)
    go_on.unlink()
    run.start().wait_for_event("checkpoint")
    mount("--bind", disk, disk)
    mount("-o", "remount,bind,ro", disk)
    go_on.touch()
    output = run.end(4)
    assert "Read-only file system" in output
    subprocess.run(["umount", "--lazy", disk], check=True)
    assert steps_of_whole_checkpoints(run) == [4, 8]

    every_damage_to_the_newest_is_found(run)
    damaged = run.checkpoints / str(names(run.run_dir.checkpoints)[-1]) / "model.pt"
    flip(damaged)
    output = run.start().end(0)
    assert str(damaged) in output
    weights = run.weights()
    del weights["ballast"]
    assert same_weights(weights, of_one_process(run))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def every_damage_to_the_newest_is_found(run):
    """Each file of it in turn, each in both ways: the one before it is taken, and the file is named."""
    shelf = run.run_dir.checkpoints
    older, newest = names(shelf)
    for file in sorted((run.checkpoints / str(newest)).iterdir()):
        kept = file.read_bytes()
        for damage in (flip, cut):
            damage(file)
            found, ((name, text),) = found_and_damaged(shelf)
            assert (found, name) == (older, newest)
            assert str(file) in text
            file.write_bytes(kept)
    assert found_and_damaged(shelf) == (newest, [])


def found_and_damaged(shelf):
    damaged = []
    found = newest_verified(shelf, lambda name, error: damaged.append((name, str(error))), None)
    return found.name, damaged


# tests/checkpoints/test_checkpoint.py and test_saving.py have an attempt that was taken over.
@pytest.mark.nightly
def test_an_attempt_that_was_taken_over_cannot_commit_and_reports_it(make_run, uninterrupted):
    """The first one is stopped in its midst with all its processes, and woken while the second one trains."""
    sections = {
        "task": "faulty:Faulty",
        "args": {"step_s": 0.2},
        "train": TRAIN,
        "checkpoint": {"every": {"steps": 4}, "keep_last": 9},
    }
    first, second = make_run("twice", **sections), make_run("twice", **sections)
    first.start().wait_for_step(6)
    its_processes = [first.process.pid, *descendants(first.process.pid)]
    for pid in its_processes:
        os.kill(pid, signal.SIGSTOP)
    second.start("--takeover").wait_for_step(6)
    for pid in its_processes:
        os.kill(pid, signal.SIGCONT)
    output = first.end(4, all_gone=False)
    assert "attempt 1, restart 0 is no longer the newest of this run" in output
    assert "Another start has taken over; this one ends." in output
    events = events_of_attempt(second.run_dir.attempt(1))
    assert [event["error"] for event in events if event["kind"] == "worker_died"] == ["Fenced"]
    second.end(0)
    written = [(name.attempt, name.step) for name in names(second.run_dir.checkpoints)]
    assert written == [(1, 4), (2, 8), (2, 12), (2, 16), (2, 20), (2, 21)]
    assert same_weights(second.weights(), uninterrupted(2))
