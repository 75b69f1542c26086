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
from clustertrain.node import variables
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.submission import record
from clustertrain.testing import FAKE_HELD, SchedulerContract, fake_commands
from launchers.test_another_launcher import forget_the_launchers, install
from support.sample_records import sample_claim

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "launcher_gridengine"
PLUGIN = """
from clustertrain.launcher import Plugin

PLUGIN = Plugin("a_queue.scheduler:SCHEDULER")
"""
SCHEDULER = """
from clustertrain.testing import {0}

SCHEDULER = {0}()
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs a fake as the launcher `queue`."""

    def install_it(fake):
        install(tmp_path / "site", plugin=PLUGIN, scheduler=SCHEDULER.format(fake))
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
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
        assert status_of(launcher_of("queue").queue, claimed()).no_answer == "the queue is away"


def claimed():
    """A run whose attempt job 1 claimed on another machine."""
    run = RunDir.newest("runs", "contract")
    record(run, "queue", Sent("1"), "digest")
    run.attempt(1).claim.create(sample_claim(launcher="queue", allocation=SchedulerStart("queue", "1")))
    return run


class TestCommands(SchedulerContract):
    launcher = "queue"
    held = FAKE_HELD

    @pytest.fixture(autouse=True)
    def _plugin(self, _folder, installed, tmp_path, monkeypatch):
        fake_commands(tmp_path / "bin")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        installed("CommandScheduler")


# ------------------------------------------------------------------------------------------- the example


def test_the_example_imports_of_clustertrain_only_the_interface_of_launchers():
    nodes = [node for path in EXAMPLE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    assert {name for name in imported if name.split(".")[0] == "clustertrain"} == {"clustertrain.launcher"}
