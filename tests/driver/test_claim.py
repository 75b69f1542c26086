"""What a start of the worker group gets: the arguments of a script, and the steps to repeat."""

from types import SimpleNamespace

import pytest

from clustertrain.driver.group.start import GroupStart, _claim
from clustertrain.job.file import dump_job
from clustertrain.job.identity import Change
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.provenance import JobChanges
from clustertrain.run_files.records.result import Failure
from clustertrain.run_files.streams.history import events_of_attempt
from clustertrain.run_files.streams.step_counter import Reached
from clustertrain.worker.scripts.script_command import script_arguments
from support.sample_records import sample_restart_claim
from support.small_job import job

__all__ = ["job"]

WORKER = SimpleNamespace(metadata=SimpleNamespace(hostname="node1", node_ip="10.0.0.1"))


def started(attempt, job):
    """The plan of the next start of the group."""
    config = GroupStart(ref=AttemptRef.of(attempt), job_yaml=dump_job(job), job=job)
    return _claim(config, [WORKER])


@pytest.fixture
def run(job):
    return RunDir.newest(job().storage.uri, "a")


def test_a_script_gets_its_resume_args_once_it_has_left_a_checkpoint(job, run):
    made = job(
        task=None, train=None, script="train.py", args=["--lr=0.1"], resume_args=["--init_from=resume"]
    )
    given = []
    attempt = claim_attempt(run)
    folder = run.local_path(run.checkpoints.key)
    folder.mkdir(parents=True)
    for file in (None, ".unfinished", "ckpt.pt", None):  # the last one is in another attempt
        if file is not None:
            (folder / file).touch()
        elif given:
            attempt = claim_attempt(run)
        given.append(script_arguments(made, {}, resumes=started(attempt, made).resumes_script))
    first, resumed = ["--lr=0.1"], ["--lr=0.1", "--init_from=resume"]
    assert given == [first, first, resumed, resumed]
    notes = [event["text"] for event in events_of_attempt(run.attempt(1)) if event["kind"] == "note"]
    assert notes == [  # none at the first start
        "there is no file in the script's checkpoint folder: it is unknown whether it resumes",
        "the script has files in its checkpoint folder: its arguments end with --init_from=resume",
    ]


def reaches(attempt, step):
    reached = attempt.restart(0).reached
    reached.parent.mkdir(parents=True, exist_ok=True)
    counter = Reached(reached)
    counter.set(step)
    counter.close()


def test_a_start_knows_how_many_before_it_a_watchdog_ended(job, run):
    attempt, alarms = claim_attempt(run), []
    script = job(task=None, train=None, script="train.py")  # no worker is asked for what it keeps in memory
    for restart, error in enumerate(("watchdog", "signal", "watchdog", "")):
        alarms.append(started(attempt, script).alarms)
        attempt.restart(restart).failure.write(Failure(0, error, text="", signature=""))
    assert alarms == [0, 1, 1, 2]


@pytest.mark.parametrize(("replaced", "redone"), [(False, [50]), (True, [])])
def test_steps_of_a_replaced_job_are_not_repeated(job, run, replaced, redone):
    first = claim_attempt(run)
    started(first, job())
    reaches(first, 50)
    second = claim_attempt(run)  # it ends before its first start of a group
    if replaced:
        second.changes.write(JobChanges(0, None, (Change("args.lr", "0.1", "0.01"),)))
    third = claim_attempt(run)
    started(third, job())
    resumed = [event for event in events_of_attempt(third) if event["kind"] == "resumed"]
    assert [event["redone_steps"] for event in resumed] == redone


def test_a_start_that_had_no_plan_hides_no_steps_of_the_one_before(job, run):
    """Its driver was killed, and its supervisor claimed it to count that."""
    first = claim_attempt(run)
    started(first, job())
    reaches(first, 50)
    first.restart(1).claim.create(sample_restart_claim())
    second = claim_attempt(run)
    started(second, job())
    (resumed,) = (event for event in events_of_attempt(second) if event["kind"] == "resumed")
    assert resumed["redone_steps"] == 50
