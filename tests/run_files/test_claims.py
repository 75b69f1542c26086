import os
import threading
from dataclasses import replace

import pytest

from clustertrain.errors import ClusterTrainError
from clustertrain.job.file import parse_job
from clustertrain.node.processes import this_process
from clustertrain.run_files import claims
from clustertrain.run_files.admission import check_progress
from clustertrain.run_files.claims import claim_attempt, committed_step, progress_of, who_runs
from clustertrain.run_files.records.claim import Beat
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.states import STATES
from support.sample_checkpoints import commit
from support.sample_records import FAR, sample_claim


def beat_of(process, counter):
    return Beat(process.host, process.pid, process.pid_started_ticks, 1.0, counter)


def test_a_reused_pid_is_another_process(run):
    attempt = claim_attempt(run)
    claim = attempt.claim.read()
    attempt.claim.write(replace(claim, pid_started_ticks=claim.pid_started_ticks - 1))
    assert who_runs(attempt) is None


def test_a_driver_that_outlived_its_launcher_still_runs(run):
    attempt = claim_attempt(run)
    attempt.claim.write(replace(attempt.claim.read(), pid_started_ticks=0))
    attempt.heartbeat.write(beat_of(this_process(), 1))
    assert who_runs(attempt) is not None


def test_a_process_on_another_machine_is_alive_while_its_heartbeat_changes(run, monkeypatch):
    monkeypatch.setattr(claims, "heartbeat_period_s", lambda run: 0.2)
    attempt = run.attempt(1)
    attempt.claim.create(sample_claim(FAR))
    attempt.heartbeat.write(beat_of(replace(FAR, pid=8), 1))
    assert who_runs(attempt) is None
    beating = threading.Event()

    def beat():
        counter = 1
        while not beating.wait(0.02):
            counter += 1
            attempt.heartbeat.write(beat_of(replace(FAR, pid=8), counter))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert who_runs(attempt) == "pid 7 on far"
    finally:
        beating.set()
        thread.join()


SLURM = SchedulerStart("slurm", "7", {"cluster": "c"})


def ends(run, state="failed", text="ValueError: no", allocation=SLURM):
    """A start of the scheduler's job that began now and ended so; without a state it vanished."""
    attempt = claim_attempt(run, allocation=allocation)
    if state:
        attempt.result.create(Result(state, STATES[state].causes[0], 1, text=text))


def checked(run, attempts, job="task: m:T\ntrain: {epochs: 1, batch_size: 1}", allocation=SLURM):
    """Check another start of the scheduler's job."""
    parsed = parse_job(f"name: a\n{job}\nfailures: {{attempts: {attempts}}}\n", "job.yaml")
    check_progress(run, parsed, allocation)


def test_attempts_without_a_new_checkpoint_are_ended(run):
    commit(run.checkpoints, 120)
    assert committed_step(run) == 120
    for text in ("ValueError: first", "ValueError: last"):
        checked(run, 2)
        ends(run, text=text)
    with pytest.raises(ClusterTrainError) as caught:
        checked(run, 2)
    assert str(caught.value).splitlines() == [
        "2 attempts in a row ended without a new committed step (all began at step 120). "
        "The last one reported:",
        "ValueError: last",
        "Fix the cause, and start the run again.",
    ]
    assert caught.value.exit_code == 1
    checked(run, 3)
    commit(run.checkpoints, 121)
    checked(run, 2)


def test_files_of_a_script_may_be_a_link_to_itself_or_have_a_name_that_is_no_utf_8(run):
    folder = run.store.local_folder(run.checkpoints.key)
    folder.mkdir(parents=True)
    (folder / "last").symlink_to("last")
    before = progress_of(run)
    (folder / os.fsdecode(b"model-\xff.pt")).write_bytes(b"1")
    assert progress_of(run) != before


@pytest.mark.parametrize("state", ["stopped", "cancelled"])
def test_what_the_user_ended_does_not_count(run, state):
    ends(run)
    for _ in range(5):
        ends(run, state)
    checked(run, 2)
    ends(run)
    with pytest.raises(ClusterTrainError, match="2 attempts in a row"):
        checked(run, 2)


def test_attempts_that_vanished_count(run):
    ends(run, state=None)
    ends(run, "preempted", text="")
    with pytest.raises(ClusterTrainError, match="ended without a result"):
        checked(run, 2)


@pytest.mark.parametrize("other", [None, replace(SLURM, job_id="8"), replace(SLURM, series="b")], ids=str)
def test_a_start_by_hand_is_not_refused_and_restarts_the_count(run, other):
    """Also that of another job, and of a RayJob of the same name."""
    for _ in range(3):
        ends(run)
    checked(run, 2, allocation=other)
    ends(run, allocation=other)
    checked(run, 1)
    for _ in range(2):
        ends(run)
    with pytest.raises(ClusterTrainError):
        checked(run, 2)


def test_a_finished_run_that_is_continued_restarts_the_count(run):
    for _ in range(2):
        ends(run)
    ends(run, "done")
    checked(run, 1)


def test_a_scripts_own_checkpoints_are_its_progress(run):
    folder = run.store.local_folder(run.checkpoints.key)
    folder.mkdir(parents=True)
    ends(run)
    (folder / "mine.pt").write_bytes(b"first")
    checked(run, 1)
    ends(run)
    changed_nothing = r"visible progress of the script \(its checkpoint folder has not changed\)\."
    with pytest.raises(ClusterTrainError, match=changed_nothing):
        checked(run, 1, "script: t.py")
    (folder / ".mine.pt.tmp").write_bytes(b"begun")
    with pytest.raises(ClusterTrainError):
        checked(run, 1)
    (folder / "mine.pt").write_bytes(b"second, longer")
    checked(run, 1)
