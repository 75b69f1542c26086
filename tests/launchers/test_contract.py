"""Schedulers fulfil the contract: this machine, and the two fakes, which plug-ins of their own register."""

import ast
import os
import sys
from pathlib import Path

import pytest

from clustertrain.launcher import Sent, State
from clustertrain.launchers.local import scheduler as local
from clustertrain.launchers.local.turn import place_here
from clustertrain.launchers.lookup import launcher_of
from clustertrain.launchers.scheduler.status import status_of
from clustertrain.launchers.scheduler.stop import stop_run
from clustertrain.node import variables
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.submission import record
from clustertrain.testing import SchedulerContract
from launchers.test_another_launcher import forget_the_launchers, install
from support.fake_schedulers import FAKE_HELD, fake_commands
from support.sample_records import sample_claim

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "launcher_gridengine"
PLUGIN = """
from clustertrain.launcher import Plugin

PLUGIN = Plugin("a_queue.scheduler:SCHEDULER")
"""
SCHEDULER = """
from support.fake_schedulers import {0}

SCHEDULER = {0}()
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs a fake as the launcher `queue`."""

    def install_it(fake):
        install(tmp_path / "site", plugin=PLUGIN, scheduler=SCHEDULER.format(fake))
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        paths = [str(tmp_path / "site"), str(Path(__file__).parents[1])]  # with the fakes of tests/support
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        forget_the_launchers()

    yield install_it
    monkeypatch.undo()
    forget_the_launchers()
    for name in [name for name in sys.modules if name.partition(".")[0] == "a_queue"]:
        del sys.modules[name]


class TestLocal(SchedulerContract):
    launcher = "local"
    unknown = Sent("99999-1", place=place_here())
    # It refuses no job, asks no command, and a job waits only for others of its sweep. It is always there.
    test_a_refusal_names_what_is_wrong_in_two_or_three_lines = None
    test_without_its_commands_nothing_is_answered_or_sent = None
    test_a_job_that_waits_is_cancelled_in_the_queue = None
    test_a_run_whose_launcher_is_gone_is_a_line_of_ls = None

    @pytest.fixture(autouse=True)
    def _program(self, _folder, tmp_path, monkeypatch):
        """A job runs a script of the shell in place of a training."""
        program = "import os\nos.execvp('bash', ['bash', 'script.sh'])\n"
        (tmp_path / "program_of_the_test.py").write_text(program)
        (tmp_path / "m.py").write_text("def f(config): pass\n")
        monkeypatch.setattr(local, "START", "program_of_the_test")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def sent(self, scheduler, program, options=""):
        Path("script.sh").write_text(program)
        return super().sent(scheduler, program, options)


class TestInMemory(SchedulerContract):
    launcher = "queue"
    held = "# held\n"
    test_without_its_commands_nothing_is_answered_or_sent = None  # it has none

    @pytest.fixture(autouse=True)
    def _plugin(self, _folder, installed):
        installed("InMemoryScheduler")

    def sent(self, scheduler, program, options=""):
        sent = super().sent(scheduler, program, options)
        if not options:
            runs = "sleep" in program
            scheduler.set(sent.job_id, State("RUNNING", "runs") if runs else State("ENDED", "ended", code=0))
        return sent

    def received(self, scheduler, sent):
        return scheduler.environments[sent.job_id][variables.SUBMISSION]

    def test_the_status_of_a_run_says_that_it_does_not_answer(self, scheduler):
        scheduler.no_answer = "the queue is away"
        assert status_of(launcher_of("queue").queue, claimed(None)).no_answer == "the queue is away"


class TestCommands(SchedulerContract):
    launcher = "queue"
    held = FAKE_HELD

    @pytest.fixture(autouse=True)
    def _plugin(self, _folder, installed, tmp_path, monkeypatch):
        fake_commands(tmp_path / "bin")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        installed("CommandScheduler")


# ------------------------------------------------------------------------------------- a job is put back


def claimed(result):
    """A run whose first attempt the first start of job 1 claimed."""
    run = RunDir.newest("runs", "contract")
    record(run, "queue", Sent("1"), "digest")
    claim(run, 1, "first", result)
    return run


def claim(run, attempt, start, result=None):
    allocation = SchedulerStart("queue", "1", start=start)
    run.attempt(attempt).claim.create(sample_claim(launcher="queue", allocation=allocation))
    if result is not None:
        run.attempt(attempt).result.write(Result(*result, 75))


WITH_SIGTERM = [
    pytest.param(("preempted", "requeued"), id="restarts_on_term"),
    pytest.param(("stopped", "terminated"), id="the job does not know"),
]


@pytest.fixture
def queue(installed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("clustertrain.launchers.scheduler.status.who_runs", lambda attempt: None)
    installed("InMemoryScheduler")
    return launcher_of("queue")


def shown(queue, run, state):
    queue.scheduler.set("1", state)
    standing = status_of(queue.queue, run).standing
    return f"{standing.state} ({standing.cause})", standing.over


@pytest.mark.parametrize("result", WITH_SIGTERM)
def test_a_run_that_got_sigterm_is_not_over_while_its_job_is_listed(queue, result):
    run = claimed(result)
    ended = "{} ({})".format(*result)
    assert shown(queue, run, State("EXITING", "ends", start="first")) == (ended, False)
    assert shown(queue, run, State("PENDING", "waits")) == ("queued (requeued)", False)
    assert shown(queue, run, State("STARTING", "starts", start="second")) == ("waiting (nodes)", False)
    assert shown(queue, run, State("RUNNING", "runs", start="second")) == ("waiting (nodes)", False)
    claim(run, 2, "second", ("done", "finished"))
    assert shown(queue, run, State("ENDED", "ended", code=0, start="second")) == ("done (finished)", True)


def test_a_run_that_was_killed_without_sigterm_waits_for_its_next_start(queue):
    run = claimed(None)
    assert shown(queue, run, State("PENDING", "waits")) == ("queued (requeued)", False)
    assert shown(queue, run, State("RUNNING", "runs", start="second")) == ("waiting (nodes)", False)
    claim(run, 2, "second", ("done", "finished"))
    assert shown(queue, run, State("ENDED", "ended", code=0, start="second")) == ("done (finished)", True)


def test_stop_of_a_run_that_trains_asks_it_to_save_whatever_the_mark_of_its_start(queue):
    run, said = RunDir.newest("runs", "contract"), []
    start = SchedulerStart("queue", "1", start="first")
    attempt = claim_attempt(run, launcher="queue", allocation=start)  # by this process, which lives
    record(run, "queue", Sent("1"), "digest")
    queue.scheduler.set("1", State("RUNNING", "runs", start="second"))
    stop_run(queue.queue, run, said.append, wait=False)
    assert attempt.stop.read().cause == "user"
    assert "nothing to save" not in "".join(said) and not queue.scheduler.cancelled


# ------------------------------------------------------------------------------------------- the example


def test_the_example_imports_of_clustertrain_only_the_interface_of_launchers():
    nodes = [node for path in EXAMPLE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    assert {name for name in imported if name.split(".")[0] == "clustertrain"} == {"clustertrain.launcher"}
