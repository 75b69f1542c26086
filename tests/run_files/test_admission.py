"""What is decided before anything starts: may the job run, and as which attempt. Whole runs: tests/whole."""

import os
from dataclasses import replace

import pytest

from clustertrain.errors import ClusterError, JobError, StorageError
from clustertrain.job.file import dump_job
from clustertrain.run_files.admission import Options
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.claim import Beat
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.result import write_result
from support.sample_checkpoints import commit, shelf_at
from support.starts import claim_next_attempt


def begun(job, options=None, sizes=(1,), said=None, **more):
    """(run, attempt or result) of a start that has room for these numbers of workers."""
    echo = said.append if said is not None else [].append
    return claim_next_attempt(job, options or Options(), lambda: sizes, echo, **more)


def finished(job, state="done", cause="finished", text=""):
    """The run of a job, as an attempt that has ended left it."""
    run = RunDir.newest(job.storage.uri, job.name)
    attempt = claim_attempt(run, world_size=1)
    for key in (run.job_key, f"{attempt.key}/job.yaml"):
        run.store.write_atomic(key, dump_job(job).encode())
    write_result(attempt, Result(state, cause, 0, text, step=10))
    return run


OPTIONS = Options(command=CommandLine("run", "my job.yaml", ("name=a",)))
START = "`clustertrain run 'my job.yaml' --set name=a"


@pytest.mark.parametrize("left", ["result", "heartbeat"])
def test_what_a_removed_folder_left_is_not_of_the_next_start(job, left):
    """The claim was removed while the run was active, and it has written since."""
    run = RunDir.newest(job().storage.uri, job().name)
    records = {"result": Result("failed", "data", 4), "heartbeat": Beat("node1", 1, 1, time=1.0, counter=9)}
    getattr(run.attempt(1), left).write(records[left])
    _, attempt = begun(job())
    assert (attempt.n, attempt.result.read(), attempt.heartbeat.read()) == (2, None, None)


def test_more_epochs_continue_a_finished_run(job):
    finished(job())
    _, result = begun(job(resources={"memory_per_worker": "1Gi"}))
    assert result.state == "done"
    _, attempt = begun(job(train={"epochs": 3, "batch_size": 8}))
    assert attempt.n == 2


EARLY = {"metric": "loss", "mode": "min", "patience": 3}


def stopping(job, epochs=2, **early_stop):
    return job(train={"epochs": epochs, "batch_size": 8, "early_stop": early_stop or None})


def test_a_run_that_ended_early_is_left_as_it_is_and_says_how_to_go_on(job):
    said = []
    run = finished(stopping(job, **EARLY), cause="early_stop", text="Early stopping at step 10: …\nraise it.")
    _, result = begun(stopping(job, **EARLY), said=said)
    assert (result.state, result.cause) == ("done", "early_stop")
    assert [a.n for a in run.attempts()] == [1]
    assert "finished by early stopping" in said[0] and said[0].endswith("step 10: …\nraise it.")


@pytest.mark.parametrize("change", [{"patience": 4}, {"metric": "accuracy"}, {"mode": "max"}, None], ids=str)
def test_more_patience_continues_a_run_that_ended_early(job, change):
    run = finished(stopping(job, **EARLY), cause="early_stop")
    begun(stopping(job, **({**EARLY, **change} if change else {})))
    assert [a.n for a in run.attempts()] == [1, 2]


def test_a_start_of_an_active_run_is_refused_with_its_pid_and_each_way_out(job):
    run = RunDir.newest(job().storage.uri, "a")
    claim_attempt(run, world_size=1)  # by this very process, which lives
    with pytest.raises(ClusterError) as caught:
        begun(job(), OPTIONS)
    assert f"pid {os.getpid()}" in str(caught.value)
    assert "`clustertrain stop 'my job.yaml' --set name=a`" in str(caught.value)
    assert f"{START} --takeover`" in str(caught.value)
    assert caught.value.exit_code == 3


def checkpoint_of(workers, tmp_path):
    commit(shelf_at(tmp_path / "runs" / "a" / "g1" / "checkpoints"), 1, workers=workers)


def test_another_world_size_needs_consent(job, tmp_path):
    checkpoint_of(3, tmp_path)
    with pytest.raises(JobError) as caught:
        begun(job())
    assert "newest checkpoint" in str(caught.value)
    assert "`clustertrain run JOBFILE --accept-changes`" in str(caught.value)
    _, attempt = begun(job(), Options(accept_changes=True))
    assert attempt.claim.read().world_size == 1


def test_a_range_of_workers_needs_no_consent(job, tmp_path):
    checkpoint_of(3, tmp_path)
    _, attempt = begun(job(resources={"workers": [1, 2]}), sizes=(1, 2))
    assert attempt.claim.read().world_size == 2


def test_fresh_begins_a_generation_and_keeps_the_old_one(job, tmp_path):
    finished(job())
    checkpoint_of(1, tmp_path)
    said = []
    run, attempt = begun(job(train={"epochs": 9, "batch_size": 4}), Options(fresh=True), said=said)
    assert (run.generation, attempt.n, [a.n for a in run.attempts()]) == (2, 1, [1])
    assert (attempt.changes.read(), said) == (None, []), "it is compared with nothing"
    assert [a.n for a in run.at(1).attempts()] == [1]
    assert "epochs: 2" in run.at(1).store.read_or_none(run.at(1).job_key).decode()


SLURM = SchedulerStart("slurm", "7", {"cluster": "c"})


def test_the_same_job_of_a_scheduler_takes_over_at_once(job):
    """This process, which is alive, made the earlier claim; the scheduler started the job again."""
    _, first = begun(job(), allocation=replace(SLURM, start="0"))
    _, second = begun(job(), allocation=replace(SLURM, start="1"))
    assert (first.n, second.n) == (1, 2)
    assert second.claim.read().allocation.start == "1"


@pytest.mark.parametrize("other", [{"job_id": "8"}, {"place": {"cluster": "d"}}, None], ids=str)
def test_another_job_of_a_scheduler_is_refused_while_one_runs(job, other):
    begun(job(), allocation=replace(SLURM, start="0"))
    with pytest.raises(ClusterError, match="is already running"):
        begun(job(), allocation=other and replace(SLURM, **other, start="1"))


def test_storage_below_a_file_is_refused(job, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught:
        begun(job(storage=str(tmp_path / "file" / "runs")))
    assert str(tmp_path / "file") in str(caught.value)
    assert str(os.getuid()) in str(caught.value)


def test_a_home_without_room_for_the_streams_of_a_run_on_s3_is_refused(job, tmp_path, moto_s3, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    on_s3 = job(storage={"uri": f"s3://{moto_s3.bucket}/runs", "endpoint": moto_s3.endpoint})
    with pytest.raises(StorageError, match=rf"^{tmp_path}/file/.* Not a directory\.[^$]*XDG_CACHE_HOME"):
        begun(on_s3)
    assert RunDir.newest(on_s3.storage.location, "a").attempts() == []


def test_a_start_claims_the_number_after_the_attempt_that_it_checked(job):
    """Whenever another start comes between the check and the claim, one of the two is refused."""
    seconds = []

    def another_start(*_):
        if not seconds:
            seconds.append(None)
            seconds[:] = begun(job())[1:]
        return [1]

    for window in (
        {"world_sizes": another_start},
        {"world_sizes": lambda: [1], "before_claim": another_start},
    ):
        seconds.clear()
        with pytest.raises(ClusterError, match="claimed by another start at the same moment"):
            claim_next_attempt(job(), Options(takeover=True), echo=print, **window)
        write_result(seconds[0], Result("stopped", "user", 130))
    assert [attempt.n for attempt in seconds[0].run.attempts()] == [1, 2]


def test_a_folder_without_a_claim_is_no_attempt(job):
    """The folder is visible before the claim in it: its maker may be about to claim it, or was killed."""
    run = RunDir.newest(job().storage.uri, "a")
    for _ in range(2):
        following = (run.newest_attempt().n if run.newest_attempt() else 0) + 1
        run.local_path(run.attempt(following).key).mkdir(parents=True)
        _, attempt = begun(job(), Options(takeover=True))
        assert attempt.n == following
        restart = attempt.restart(0)
        run.local_path(restart.key).mkdir(parents=True)
        assert attempt.newest_restart() is None
