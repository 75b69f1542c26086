"""A launcher that clustertrain does not contain: the commands reach it through the registry."""

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.job.file import load_job
from clustertrain.launchers import LAUNCHERS
from clustertrain.launchers.known_runs import KnownRun, record_known_run

MODULE = """
from clustertrain.observe.run_table import RunRow

class Queue:
    name = "queue"
    storage_visible = False

    def status(self, target):
        return [("run", target.submitted_job.name), ("state", "running (training)")]

    def logs(self, target, selection, *, follow):
        yield f"rank {selection.rank} of {target.known.job_id}"

    def stop(self, target, echo, *, wait):
        echo(f"cancelled {target.known.job_id}")

    def runs(self, known):
        return [RunRow(each.name, "running", where=each.where) for each in known], ["one queue is closed"]

    def run_in_cluster(self, target, command, *options):
        yield f"{command} there"

LAUNCHER = Queue()
"""


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Calls a command in a folder whose job was submitted through that launcher."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_queue_launcher.py").write_text(MODULE)
    (tmp_path / "job.yaml").write_text("name: digits\nfunction: m:f\nstorage: runs\n")
    monkeypatch.setitem(LAUNCHERS, "queue", "a_queue_launcher")
    assert (
        record_known_run(KnownRun.of(load_job("job.yaml"), "job.yaml", "queue", "queue of the lab", "77"))
        is None
    )

    def call(*arguments):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    return call


@pytest.mark.parametrize("name", ["job.yaml", "runs/digits", "digits"])
def test_the_commands_reach_it(cli, name):
    assert "running (training)" in cli("status", name)
    assert cli("logs", name, "--rank", "3") == "rank 3 of 77\n"
    assert cli("stop", name) == "cancelled 77\n"
    assert cli("ckpt", "ls", name) == "ckpt ls there\n"


def test_its_data_and_its_line_of_ls(cli):
    assert cli("data", "ls") == "data ls there\n"
    _, line, note = cli("ls").splitlines()
    assert line.split() == ["digits", "running", "-", "-", "queue", "of", "the", "lab,", "job", "77"]
    assert note == "note: one queue is closed"
