"""The ledger of written files: each category, and what a run leaves that is not as it should be."""

import json

import pytest

from clustertrain.observe.ledger.of_run import ledger_of
from clustertrain.run_files.records.claim import RestartClaim, ResumePoint
from clustertrain.run_files.records.provenance import JobChanges
from clustertrain.run_files.records.result import Outcome, Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from support.sample_records import sample_claim, sample_submission

T0 = 1_000_000.0
KILLED = "rank 1 died of signal 9 (SIGKILL)"


def lines(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for kind, time, fields in records:
            file.write(json.dumps({"kind": kind, "time": T0 + time, **fields}) + "\n")


class Written:
    """An attempt as its files show it; times count from T0."""

    def __init__(self, run, n=1, *, claimed=0, gpus=0, allocation=None):
        self.attempt, self.gpus = run.attempt(n), gpus
        launcher = allocation.scheduler if allocation else "local"
        claim = sample_claim(time=T0 + claimed, allocation=allocation, launcher=launcher)
        self.attempt.claim.create(claim)

    def event(self, kind, time, **fields):
        lines(self.attempt.events, (kind, time, fields))
        return self

    def node_event(self, kind, time, **fields):
        lines(self.attempt.node_events("a"), (kind, time, fields))
        return self

    def starts(self, number, claimed, started=None, *, resumes=0, hosts=("a", "b"), **plan):
        restart = self.attempt.restart(number)
        restart.claim.create(RestartClaim("a", 1, T0 + claimed))
        restart.plan.write(ResumePoint(None, resumes, world_size=2, hosts=hosts, **plan))
        if started is not None:
            ranks = [{"rank": 0, "host": "a", "pid": 1, "gpus": [{}] * self.gpus}]
            self.event("group_started", started, restart=number, world_size=2, ranks=ranks)
        return self

    def trains(self, number, *times, every=1, step=0, data_wait_s=0.0, compute_s=1.0, kind="train"):
        for n, time in enumerate(times, 1):
            times_s = {"data_wait_s": data_wait_s, "compute_s": compute_s} if kind == "train" else {}
            record = (kind, time, {"step": step + n * every, **times_s})
            lines(self.attempt.restart(number).metrics, record)
        return self

    def dies(self, time, step, *, restart=0, error="signal", host="b"):
        failure = {"restart": restart, "step": step, "error": error, "host": host}
        return self.event("worker_died", time, text=KILLED, **failure).event("restarting", time, step=step)

    def ends(self, time, *, number=0, returned=None, state="done", cause="finished", step=1, code=0):
        if returned is not None:
            self.attempt.restart(number).outcome.write(Outcome(True, step, train_ended=T0 + returned))
        self.attempt.result.create(Result(state, cause, code, step=step, ended_at=T0 + time))
        return self


def books(run, *, now=None, **options):
    """The seconds of each category of a ledger that adds up."""
    ledger = ledger_of(run, now=T0 + now if now is not None else None, **options)
    bookings = [booking for phase in ledger.phases for booking in phase.booked]
    assert all(booking.seconds > 0 for booking in bookings)
    for phase in ledger.phases:
        assert sum(booking.seconds for booking in phase.booked) == pytest.approx(phase.wall_s, abs=1e-4)
    for before, after in zip(ledger.phases, ledger.phases[1:], strict=False):
        assert before.end == after.start
    assert sum(ledger.by_category().values()) == pytest.approx(ledger.wall_s, abs=1e-3)
    assert all(loss.cause for loss in ledger.losses())
    return ledger, pytest.approx(ledger.by_category(), abs=1e-3)


def finished(run, **options):
    """Ray, workers, data, the model, a slow first step, steps, an evaluation, a save, the end."""
    written = Written(run, **options).event("ray_started", 4, seconds=4).starts(0, 6, 15)
    written.node_event("stage", 9, name="x", phase="download", seconds=2.0)
    written.node_event("stage", 10, name="x", phase="ready", seconds=3.0)
    written.trains(0, 22, compute_s=5.0).trains(0, 24, 26, step=1, data_wait_s=0.5, compute_s=1.5)
    written.trains(0, 28.5, step=2, kind="eval").trains(0, 30.75, step=3, data_wait_s=0.5, compute_s=1.5)
    save = {"name": "00000004-1.0", "blocking_s": 0.25, "write_s": 0.5, "reason": "steps"}
    written.node_event("checkpoint", 29.5, step=4, **save)
    return written.ends(34, returned=32, step=4)


ALL_OF_IT = {
    "start": 6 + 6,
    "staging": 3,
    "prepare": 2 + 3,
    "steps": 2 + 3 * 1.5,
    "data_wait": 3 * 0.5,
    "evaluation": 2.5,
    "save": 0.25 + 1.25,
    "end": 2,
}


def test_every_second_of_an_undisturbed_run_is_booked_once(run):
    finished(run, gpus=4)
    ledger, found = books(run)
    assert found == ALL_OF_IT
    assert ledger.notes == ()
    assert ledger.ettr == pytest.approx((6.5 + 2.5) / 34)
    assert (ledger.device, ledger.device_hours) == ("GPU", pytest.approx(34 * 2 * 4 / 3600))
    causes = {(loss.category, loss.cause) for loss in ledger.losses()}
    assert {("start", "Ray"), ("staging", "data sets"), ("save", "steps")} <= causes


def test_a_kill_costs_the_broken_step_the_restart_and_what_is_redone(run):
    written = Written(run).starts(0, 2, 3).trains(0, 5, 6, 7, 8).dies(10, 5)  # step 5 was not logged
    written.starts(1, 12, 13, resumes=2)
    written.trains(1, 15, 16, 17, 18, step=2).ends(19, number=1, returned=18, step=6)
    ledger, found = books(run)
    assert found == {
        "start": 3,
        "prepare": 1 + 1,
        "steps": 5 + 1,
        "lost": 1,
        "restart": 2 + 1,
        "redone": 3,
        "end": 1,
    }
    assert {loss.cause for loss in ledger.losses() if loss.category in ("lost", "restart", "redone")} == {
        KILLED
    }
    assert [phase.ranks for phase in ledger.phases] == [2, 2, 2]


def test_a_hang_and_a_lost_node_have_their_own_categories(run):
    written = Written(run).starts(0, 2, 3).trains(0, 5, 6).dies(26, 2, error="watchdog")
    written.starts(1, 27, 28, resumes=2).trains(1, 30, 31, step=2).dies(32.5, 4, restart=1)
    written.starts(2, 62, 63, resumes=4, hosts=("a", "c")).trains(2, 65, step=4)
    written.ends(66, number=2, returned=65, step=5)
    _, found = books(run)
    assert found == {
        "start": 3,
        "prepare": 3,
        "steps": 5,
        "hang": 20,
        "restart": 1 + 1,
        "lost": 1,
        "lost_node": 0.5 + 29.5 + 1,
        "end": 1,
    }


def test_queue_idle_and_a_requeue_after_a_lost_node(run):
    def allocation(job, restart):
        return SchedulerStart("slurm", job, start=str(restart))

    for job, time in (("7", -50.0), ("8", 40.0)):
        run.submission("slurm", job).write(sample_submission(job, time=T0 + time))
    lost = Written(run, allocation=allocation("7", 0)).starts(0, 2, 3).trains(0, 5, 6)
    lost.ends(10, state="lost", cause="node_fail", step=2, code=1)
    again = Written(run, 2, claimed=20, allocation=allocation("7", 1))
    again.ends(30, state="stopped", cause="user", step=2, code=75)
    Written(run, 3, claimed=45, allocation=allocation("8", 0)).ends(46, step=2)
    ledger, _ = books(run)
    found = ledger.by_category()
    assert (found["queue"], found["lost_node"], found["idle"]) == (50 + 5, 10, 10)
    assert ledger.device_hours == pytest.approx(2 * (10 + 10 + 1) / 3600)
    run.submission("slurm", "9").write(sample_submission("9", time=T0 + 60))
    ledger, _ = books(run, alive=True, now=100)
    assert ledger.by_category()["queue"] == 55 + 40


def test_steps_that_were_never_saved_or_were_replaced_are_lost(run):
    written = Written(run).starts(0, 2, 3).trains(0, 5, 6, 7)
    written.event("worker_died", 8, restart=0, step=3, text="ValueError: no", error="ValueError")
    written.ends(9, state="failed", cause="error", step=3, code=1)
    _, found = books(run)
    assert found == {"start": 3, "prepare": 1, "lost": 3 + 1, "end": 1}
    other = Written(run, 2, claimed=20)
    other.attempt.changes.write(JobChanges(0, None, ()))
    other.starts(0, 22, 23).trains(0, 25, 26).ends(27, returned=26, step=2)
    ledger, _ = books(run)
    assert ledger.by_category()["lost"] == pytest.approx(4)
    assert ledger.by_category()["idle"] == pytest.approx(11)
    assert any("started over" in loss.cause for loss in ledger.losses())


def test_the_books_of_a_running_run_end_now_and_of_a_vanished_one_with_its_last_sign(run):
    Written(run).starts(0, 2, 3).trains(0, 5, 6)
    ledger, found = books(run, alive=True, now=10)
    assert found == {"start": 3, "prepare": 1, "steps": 6}
    ledger, _ = books(run)
    assert ledger.wall_s == 6


def test_a_first_attempt_that_was_killed_at_its_claim_leaves_no_gap(run):
    Written(run)
    Written(run, 2, claimed=5).starts(0, 7, 8).trains(0, 10).ends(11, returned=10, step=1)
    ledger, _ = books(run)
    assert (ledger.by_category()["idle"], ledger.wall_s) == (5, 11)


def test_a_run_without_metrics_has_what_there_is(run, tmp_path):
    Written(run).starts(0, 2, 3).ends(9, returned=8, step=None)
    _, found = books(run)
    assert found == {"start": 3, "prepare": 5, "end": 1}
    job = "name: digits\nscript: train.py\ncode: .\nstorage: runs\n"
    run.store.write_atomic(run.attempt(1).job_key, job.encode())
    ledger, found = books(run)
    assert found == {"start": 3, "steps": 5, "end": 1}
    assert "a script counts its own steps" in ledger.notes[0]
    assert books(run.fresh())[0].ettr is None


def test_a_script_that_logs_has_steps_and_none_is_lost_at_a_stop(run):
    """It logs steps 1 to 4, is killed, continues at step 3 and is stopped after step 6."""
    written = Written(run).event("ray_started", 1, seconds=1).starts(0, 2, 3, of_script=True)
    written.trains(0, 5, 6, 7, 8).dies(9, 4).starts(1, 10, 11, of_script=True)
    written.trains(1, 13, 14, 15, 16, step=2).ends(
        17, number=1, returned=16, state="stopped", cause="user", step=6
    )
    _, found = books(run)
    assert found == {"start": 3, "prepare": 2, "steps": 6, "lost": 1, "restart": 2, "redone": 2, "end": 1}


def test_torn_lines_later_versions_and_wild_times_are_never_an_error(run):
    written = finished(run)
    lines(written.attempt.events, ("of_a_later_version", 3, {"step": "many"}), ("ray_started", 1e11, {}))
    lines(written.attempt.events, ("worker_died", -5, {"restart": 0, "step": None, "text": None, "host": 7}))
    wild = {"blocking_s": "long", "write_s": None, "name": 7}
    lines(written.attempt.node_events("a"), ("checkpoint", 20, wild), ("stage", 8, {"phase": "x"}))
    metrics = written.attempt.restart(0).metrics
    lines(metrics, ("train", -1e9, {"step": 2}), ("train", 23, {"step": 10**12, "compute_s": -4}))
    lines(
        metrics, ("train", 25, {"step": -3, "compute_s": "x", "data_wait_s": [1]}), ("eval", 9e9, {"step": 1})
    )
    for path in (written.attempt.events, metrics):
        with path.open("a") as file:
            file.write('{"kind": "train", "ti')
    ledger, _ = books(run)
    assert ledger.wall_s == 34
    run.store.write_atomic(written.attempt.restart(0).plan.key, b'{"format_version": 99}')
    ledger, _ = books(run)
    assert "has format 99" in ledger.notes[0]


def test_a_clock_that_was_set_back_makes_nothing_negative(run):
    written = Written(run).event("ray_started", 40).starts(0, 50, 20).trains(0, 25, 24, 60, 28)
    written.starts(1, 10, 26, resumes=4).trains(1, 27, 28, step=4).ends(30, number=1, returned=5, step=6)
    ledger, _ = books(run)
    assert ledger.wall_s == 30


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_long_run_takes_no_longer_for_each_of_its_records(run):
    written = Written(run).starts(0, 2, 4)
    times = [5 + n for n in range(20_000)]
    written.trains(0, *times, compute_s=0.9).trains(0, *(time + 0.5 for time in times), kind="eval")
    ledger, _ = books(run, alive=True, now=20_010)
    assert ledger.by_category()["evaluation"] == pytest.approx(2000, rel=0.01)
