"""A job that was changed since its run began: replaced, accepted or refused. Whole runs: tests/whole."""

import pytest

from clustertrain.errors import JobError
from clustertrain.observe.tables import next_step, status_rows
from clustertrain.run_files.admission import Options
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.recorded_job import job_of, newest_job
from clustertrain.run_files.records.claim import ResumePoint
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.history import curve
from support.run_status import status_of
from support.sample_checkpoints import commit
from support.starts import claim_next_attempt

COMMAND = CommandLine("run", "job.yaml", ("args.lr=0.01",))
SCRIPT = {"task": None, "train": None, "script": "train.py"}
MODULE = {"task": None, "train": None, "module": "train"}


def begun(job, **options):
    """(attempt or result, what was printed) of a start on one worker."""
    said = []
    chosen = Options(**options, command=COMMAND)
    _, begun = claim_next_attempt(job, chosen, lambda: (1,), said.append)
    return begun, said


def ended(job, state="failed", cause="error", **options):
    """An attempt of the job, as it is after its end."""
    attempt, _ = begun(job, **options)
    write_result(attempt, Result(state, cause, 1, text="ValueError: no"))
    return attempt


def keeps(run, name="model.pt"):
    """A file that a script saves."""
    run.store.write_atomic(f"{run.checkpoints.key}/{name}", b"weights")


def changes_shown(run):
    """The rows of `status` about changes of the job."""
    rows = status_rows(status_of(run))
    first = [name for name, _ in rows].index("changes")
    return [text for name, text in rows[first:] if name in ("changes", "")]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"args": {"lr": 0.01}}, "args.lr: 0.1 → 0.01"),
        ({"data": {"d": {"uri": "/x"}}}, 'data.d.uri: absent → "/x"'),
        ({"train": {"epochs": 2, "batch_size": 4}}, "train.batch_size: 8 → 4"),
        ({**SCRIPT, "args": ["--lr=1"]}, 'script: absent → "train.py"'),
    ],
    ids=["args", "data", "train", "script"],
)
def test_a_run_without_a_checkpoint_starts_over_with_the_corrected_job(job, changed, line):
    first = ended(job(args={"lr": 0.1}))
    corrected = job(**{"args": {"lr": 0.1}, **changed})
    second, said = begun(corrected)
    assert (first.n, second.n) == (1, 2)
    assert said[0] == "The job has changed. The run has no checkpoint yet and starts over:"
    assert f"  {line}" in said
    assert job_of(first) == job(args={"lr": 0.1})
    assert job_of(second) == corrected
    assert second.changes.read().starts_over
    assert f"step 0: {line.replace(': ', ' ', 1)}" in changes_shown(second.run)


def test_a_replaced_job_has_no_figures_of_the_old_one(job):
    attempt = ended(job(args={"lr": 0.1}))
    restart = attempt.restart(0)
    restart.plan.write(ResumePoint(None, 0, 1))
    EventLog(restart.metrics).write("train", step=7, loss=1.0)
    assert [record["step"] for record in curve(attempt.run)] == [7]
    begun(job(args={"lr": 0.01}))
    assert curve(attempt.run) == []
    assert status_of(attempt.run).step is None


def test_an_accepted_change_is_printed_and_recorded_with_its_step(job):
    first = ended(job(args={"lr": 0.1}))
    commit(first.run.checkpoints, 120)
    smaller = {"epochs": 2, "batch_size": 4, "seed": 1}
    second, said = begun(job(args={"lr": 0.01}, train=smaller), accept_changes=True)
    assert said == [
        "The job has changed. The run continues from its checkpoint 00000120-1.0 (step 120) with:",
        "  args.lr: 0.1 → 0.01",
        "  train.batch_size: 8 → 4",
        "  train.seed: 0 → 1",
    ]
    write_result(second, Result("failed", "error", 1))
    commit(second.run.checkpoints, 200)
    third, said = begun(job(args={"lr": 0.01}, train=smaller))  # needs no flag: nothing changed since
    assert (said, third.changes.read()) == ([], None)
    assert changes_shown(third.run) == [
        "step 120: args.lr 0.1 → 0.01",
        "step 120: train.batch_size 8 → 4",
        "step 120: train.seed 0 → 1",
    ]


def test_another_class_is_accepted_and_another_kind_of_entry_point_never(job):
    """Whether the checkpoint fits another class is decided where it is loaded."""
    attempt = ended(job())
    commit(attempt.run.checkpoints, 120)
    with pytest.raises(JobError, match=r"a checkpoint of a task, which a script cannot load") as caught:
        begun(job(**SCRIPT), accept_changes=True)
    assert f"`{COMMAND} --fresh`" in str(caught.value)
    attempt, _ = begun(job(task="package.m:T"), accept_changes=True)
    assert attempt.n == 2


def test_the_arguments_of_a_script_change_without_a_flag_and_its_data_do_not(job):
    first = ended(job(**SCRIPT, args=["--lr=0.1"]))
    keeps(first.run)
    second, said = begun(job(**SCRIPT, args=["--lr=0.01"], resume_args=["--resume"]))
    assert said[0] == "The job has changed. Its script gets:", "where it continues is not known"
    write_result(second, Result("failed", "error", 1))
    assert changes_shown(second.run) == ['attempt 2: args ["--lr=0.1"] → ["--lr=0.01"]']
    moved = {"data": {"d": {"uri": "/x"}}, "args": ["--lr=0.01"]}
    with pytest.raises(JobError, match=r"has a checkpoint, and the job has changed since"):
        begun(job(**SCRIPT, **moved))
    assert begun(job(**SCRIPT, **moved), accept_changes=True)[0].n == 3


def test_a_script_that_becomes_a_module_needs_consent_and_keeps_its_checkpoints(job):
    first = ended(job(**SCRIPT, args=["--lr=0.1"]))
    keeps(first.run)
    with pytest.raises(JobError, match=r'module: absent → "train"'):
        begun(job(**MODULE, args=["--lr=0.1"]))
    second, _ = begun(job(**MODULE, args=["--lr=0.1"]), accept_changes=True)
    assert not second.changes.read().starts_over


@pytest.mark.parametrize("name", [".partial", ".tmp/model.pt", None], ids=str)
def test_a_script_that_left_no_visible_file_has_no_checkpoint(job, name):
    first = ended(job(**SCRIPT, args=[]))
    (first.run.local_path(first.run.checkpoints.key) / "folder").mkdir(parents=True)
    if name is not None:
        keeps(first.run, name)
    second, _ = begun(job())
    assert second.changes.read().starts_over


def test_a_finished_script_runs_again_with_other_arguments_only(job):
    first = ended(job(**SCRIPT, args=["--epochs=1"]), "done", "finished")
    keeps(first.run)
    assert begun(job(**SCRIPT, args=["--epochs=1"]))[0].state == "done"
    assert begun(job(**SCRIPT, args=["--epochs=2"]))[0].n == 2


@pytest.mark.parametrize("reached", [0, 120], ids=["before the load", "by the checkpoint"])
@pytest.mark.parametrize("state", [("done", "finished"), ("stopped", "user"), ("failed", "error")], ids=str)
def test_a_changed_job_that_the_worker_refuses_changes_nothing(job, state, reached):
    """Whether a checkpoint fits another model is known where it is loaded: after the claim."""
    longer = {"epochs": 3, "batch_size": 8}
    first = ended(before := job(args={"lr": 0.1}), *state)
    commit(first.run.checkpoints, 120)
    wrong = job(args={"lr": 0.01}, train=longer)
    for n in (2, 3):
        refused, _ = begun(wrong, accept_changes=True)
        result = Result(
            "failed", "job", 2, text="The weights do not fit", step=reached, checkpoint="00000120-1.0"
        )
        write_result(refused, result)
        assert refused.n == n
    status = status_of(first.run)
    assert (status.state, status.attempt.n) == (state[0], 1)
    assert "changes" not in dict(status_rows(status))
    assert newest_job(first.run) == before
    hint = next_step(first.run, result, COMMAND)
    assert f"the run is as it was: {state[0]} ({state[1]})." in hint
    assert f"again, with another change:  {COMMAND} --accept-changes" in hint and "again:" not in hint
    with pytest.raises(JobError, match=r"args\.lr: 0\.1 → 0\.01"):
        begun(wrong)
    following, said = begun(before)
    assert (
        (following.state == "done" and "already finished" in said[0])
        if state[0] == "done"
        else following.n == 4
    )
    assert "The job has changed" not in "".join(said)


def test_a_changed_job_that_trained_a_step_is_the_job_of_the_run(job):
    first = ended(job(args={"lr": 0.1}))
    commit(first.run.checkpoints, 120)
    changed, _ = begun(job(args={"lr": 0.01}), accept_changes=True)
    write_result(changed, Result("failed", "job", 2, text="The loss of step 122 is no scalar", step=121))
    assert status_of(first.run).attempt.n == 2
    assert "step 120: args.lr 0.1 → 0.01" in changes_shown(first.run)
    assert begun(job(args={"lr": 0.01}))[0].n == 3
