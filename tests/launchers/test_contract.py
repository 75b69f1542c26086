"""This machine fulfils the contract of a scheduler; tests/slurm, kubernetes and gridengine ask real ones."""

import ast
import os
from pathlib import Path

import pytest

from clustertrain.launcher import Sent
from clustertrain.launchers.local import scheduler as local
from clustertrain.launchers.local.turn import place_here
from clustertrain.testing import SchedulerContract

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "launcher_gridengine"


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


# ------------------------------------------------------------------------------------------- the example


def test_the_example_imports_of_clustertrain_only_the_interface_of_launchers():
    nodes = [node for path in EXAMPLE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    assert {name for name in imported if name.split(".")[0] == "clustertrain"} == {"clustertrain.launcher"}
