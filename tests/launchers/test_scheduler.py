"""What the commands make of a scheduler's answers, which a test gives here, and of a run of this machine;
tests/slurm asks a real one.
"""

import os
import signal
from types import SimpleNamespace

import pytest

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.model import Job
from clustertrain.launchers.elsewhere import RemoteLauncher, _Shown
from clustertrain.launchers.lookup import launcher_of
from clustertrain.launchers.scheduler.interface import Sent, State
from clustertrain.launchers.scheduler.start import _meanings, _parsed
from clustertrain.launchers.scheduler.status import Registered
from clustertrain.launchers.scheduler.stop import stop_run
from clustertrain.launchers.scheduler.submit import idle_workers
from clustertrain.launchers.shell import Unanswered
from clustertrain.launchers.slurm.queue import state_of
from clustertrain.launchers.target import NotThere
from clustertrain.observe.logs import LogSelection
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.command_line import UNKNOWN
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.testing import InMemoryScheduler
from support.sample_records import sample_claim, sample_submission
from support.waiting import wait_until


def queue(native="PENDING", job_id="12"):
    """A scheduler that has one job, in this state of SLURM; None: it does not answer."""
    scheduler = InMemoryScheduler()
    if native is None:
        scheduler.no_answer = "the queue does not answer"
    else:
        scheduler.set(job_id, state_of(native, "", "", None))
    return Registered("slurm", scheduler)


LOCAL = Registered("local", launcher_of("local").scheduler)


def test_a_user_without_a_name_cancels_a_job_that_waits(run, monkeypatch):
    """As in a container with a uid of its own."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    run.submission("slurm", "12").write(sample_submission())
    said = []
    stop_run(queue(), run, said.append)
    assert said == ["fake job 12 was cancelled in the queue"]
    assert run.cancellation("slurm", "12").read().by.startswith("4000000 on ")


def test_stop_of_a_run_that_trains_asks_it_to_save_whatever_the_mark_of_its_start(run):
    start = SchedulerStart("slurm", "12", start="first")
    attempt = claim_attempt(run, launcher="slurm", allocation=start)  # by this process, which lives
    run.submission("slurm", "12").write(sample_submission())
    trains, said = queue(), []
    trains.scheduler.set("12", State("RUNNING", "runs", start="second"))
    stop_run(trains, run, said.append, wait=False)
    assert attempt.stop.read().cause == "user"
    assert "nothing to save" not in "".join(said) and not trains.scheduler.cancelled


def test_a_lost_run_is_not_called_over_while_its_job_may_be_put_back(run, monkeypatch):
    monkeypatch.setattr("clustertrain.launchers.scheduler.status.who_runs", lambda attempt: None)
    start = SchedulerStart("slurm", "12")
    run.attempt(1).claim.create(sample_claim(launcher="slurm", allocation=start))
    with pytest.raises(ClusterError, match="digits is lost, and the queue does not answer"):
        stop_run(queue(None), run, print)


def test_a_lost_process_of_another_machine_is_over(run, monkeypatch):
    """As after the restart of a container, which then has another name."""
    monkeypatch.setattr("clustertrain.launchers.scheduler.status.who_runs", lambda attempt: None)
    start = SchedulerStart("local", "12-34", {"host": "a-host-that-is-not-here"})
    run.attempt(1).claim.create(sample_claim(launcher="local", allocation=start))
    with pytest.raises(JobError, match="attempt 1 is lost"):
        stop_run(LOCAL, run, print)


def test_workers_that_the_batch_never_divides_among_are_named_where_they_are_paid_for():
    sections = {"name": "digits", "task": "m:T", "train": {"epochs": 1, "global_batch_size": 12}}
    job = Job(**sections, resources={"workers": (2, 5)})
    (note,) = idle_workers(queue(), job)
    assert note.startswith("the job asks for 5 workers, of which at most 4 train: ")
    assert note.endswith("set resources.workers: [2, 4]")
    assert idle_workers(LOCAL, job) == []
    assert idle_workers(queue(), Job(**sections, resources={"workers": (2, 4)})) == []


# ------------------------------------------------------------------------ a storage that only a cluster has


class Reach:
    def __init__(self, *statuses):
        self.statuses = [*statuses]

    def sent(self, target):
        return Sent("digits")

    def status(self, target, *, existed=False):
        status = self.statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        return status

    def first_lines(self, target):
        return ["submitted"]

    def lines(self, target, command):
        yield f"{command[0]} was requested"


TARGET = SimpleNamespace(submitted_job=SimpleNamespace(name="digits"), command=lambda start: UNKNOWN)


def elsewhere(native, *statuses):
    return RemoteLauncher("slurm", queue(native, "digits").scheduler, Reach(*statuses))


def test_a_cluster_that_is_away_after_the_end_of_a_run_does_not_change_its_exit_code(capsys):
    ended = StoredStatus(
        state="stopped", cause="user", over=True, exit_code=75, rows=(("state", "stopped (user)"),)
    )
    launcher = elsewhere("COMPLETED", ended, Unanswered("the cluster does not answer"))
    assert launcher.follow(TARGET, print) == 75
    assert "stopped (user)" in capsys.readouterr().out


def test_a_cluster_that_does_not_list_its_jobs_has_perhaps_one_to_stop():
    said = []
    running = StoredStatus(state="running", cause="training")
    elsewhere(None, running).stop(TARGET, said.append, wait=True)
    assert said == ["stop was requested", "fake job digits is deleted; its storage stays"]


def test_the_log_of_a_run_whose_storage_cannot_be_read_says_why():
    rows = ("run", "digits"), ("note", "the storage was not read: exec is denied")
    ended = StoredStatus(state="done", cause="finished", over=True, rows=rows)
    lines = [*elsewhere("PENDING", ended).logs(TARGET, LogSelection(), follow=False)]
    assert lines == [ended.standing.line, "note: the storage was not read: exec is denied", "submitted"]


def test_after_a_broken_connection_every_line_is_printed_once():
    """While a bar grows its states are lines; who looks again sees only the last one."""

    def looks(*lines, breaks=False):
        yield from lines
        if breaks:
            raise NotThere("the connection broke")

    shown = _Shown(str)
    first = [*shown.more(1, looks("a", "10%", "20%", "b", "b", breaks=True))]
    assert first == ["a", "10%", "20%", "b", "b", "-- the connection broke; reconnecting"]
    second = [*shown.more(1, looks("a", "100%", "b", "b", "b", "c", breaks=True))]
    assert second == ["100%", "b", "c", "-- the connection broke; reconnecting"]
    assert [*shown.more(1, looks("a", "100%", "b", "b", "b", "c", "d"))] == ["d"]
    assert shown.complete == 1
    followed = [*shown.more(2, looks("rank 0", "rank 1", "rank 0", "rank 1", breaks=True))][:-1]
    assert followed == ["rank 0", "rank 1"] * 2
    assert [*shown.more(2, looks("rank 0", "rank 0", "rank 0", "rank 1", "rank 1"))] == ["rank 0"]


@pytest.mark.parametrize(("options", "state"), [([], "stopped"), (["--restart-code", "99"], "preempted")])
def test_every_signal_is_the_time_limits_once_the_time_is_over(options, state):
    options = ["--at-time-limit", "USR1", *options, "gridengine", "7", "job.yaml"]
    early = _meanings(_parsed(["--warned-after", "1e6", *options]))
    assert (early[signal.SIGUSR1], early[signal.SIGUSR2]) == (
        (state, "time_limit"),
        ("stopped", "terminated"),
    )
    late = _meanings(_parsed(["--warned-after", "0", *options]))
    wait_until(lambda: late[signal.SIGUSR2] == late[signal.SIGTERM] == ("stopped", "time_limit"), 60)
    assert late[signal.SIGUSR1] == (state, "time_limit")
