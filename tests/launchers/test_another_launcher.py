"""A launcher from another distribution: real metadata on the path, as pip installs it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.job import launcher_plugins
from clustertrain.job.file import load_job
from clustertrain.launchers.known_runs import KnownRun, record_known_run
from clustertrain.node import installed
from commands import ran

pytestmark = pytest.mark.slow

LAUNCHER = """
from clustertrain.launchers.launcher import Launcher
from clustertrain.observe.status_json import StoredStatus

class Reach:
    def lines(self, target, command):
        yield f"{' '.join(command)} there"

class Queue(Launcher):
    name = "queue"
    reach = Reach()

    def status(self, target):
        rows = (("run", target.submitted_job.name), ("state", "running (training)"))
        return StoredStatus(state="running", cause="training", rows=rows)

    def logs(self, target, selection, *, follow):
        yield f"rank {selection.rank} of {target.known.job_id}"

    def stop(self, target, echo, *, wait):
        echo(f"cancelled {target.known.job_id}")

    def __init__(self):
        pass

LAUNCHER = Queue()
"""
PLUGIN = """
from clustertrain.job.launcher_plugins import LauncherSection, Plugin

class Section(LauncherSection):
    \"\"\"Settings for the queue of the lab.\"\"\"

    text_keys = frozenset(("lane",))

    lane: str = "slow"
    \"\"\"Where the job waits.\"\"\"

PLUGIN = Plugin(launcher="a_queue.launcher:LAUNCHER", connect="a_queue.ray:ray_cluster", section=Section)
"""


def install(
    folder, plugin=PLUGIN, launcher=LAUNCHER, distribution="queue-of-the-lab", value="a_queue.plugin:PLUGIN"
):
    """Write a package and its metadata into a folder."""
    package = folder / "a_queue"
    package.mkdir(parents=True, exist_ok=True)
    for name, text in (("__init__", ""), ("plugin", plugin), ("launcher", launcher)):
        (package / f"{name}.py").write_text(text)
    info = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[clustertrain.launchers]\nqueue = {value}\n")


def forget_the_launchers():
    installed.registered_launchers.cache_clear()
    launcher_plugins._loaded.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the import path, with a job file; this process forgets the plug-ins that it has loaded."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "job.yaml").write_text("name: digits\nfunction: m:f\nstorage: runs\n")
    forget_the_launchers()
    yield tmp_path
    forget_the_launchers()
    for name in [name for name in sys.modules if name.partition(".")[0] == "a_queue"]:
        del sys.modules[name]


def call(*arguments, code=0):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


def in_a_new_process(folder, *arguments):
    """The command with the folder's distribution, as the user of an installation types it."""
    return ran(
        [sys.executable, "-m", "clustertrain.cli", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "site"), "HOME": str(folder), "PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def submitted(folder):
    install(
        folder / "site", plugin=PLUGIN.replace(", section=Section", "")
    )  # the fields of Job exist already
    known = KnownRun.of(load_job("job.yaml"), "job.yaml", "queue", "queue of the lab", "77")
    assert record_known_run(replace(known, storage_there="/there/runs")) is None


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("name", ["job.yaml", "runs/digits", "/there/runs/digits"])
def test_the_commands_reach_it(name):
    assert "running (training)" in call("status", name)
    assert call("logs", name, "--rank", "3") == "rank 3 of 77\n"
    assert call("stop", name) == "cancelled 77\n"
    assert call("ckpt", "ls", name) == "ckpt ls there\n"


@pytest.mark.usefixtures("submitted")
def test_its_data_and_its_line_of_ls():
    assert call("data", "ls") == "data ls there\n"
    _, line = call("ls").splitlines()
    assert line.split()[:2] == ["digits", "unknown"] and "queue of the lab, job 77" in line
    assert f"status {Path.cwd()}/runs/digits` reads its state" in line


def test_its_section_belongs_to_the_job_file_and_to_the_schema(folder):
    install(folder / "site")
    (folder / "job.yaml").write_text("name: digits\nfunction: m:f\nqueue: {lane: 007}\n")
    (folder / "m.py").write_text("def f(config): pass\n")
    done = in_a_new_process(folder, "check", "--no-code", "--defaults")
    assert "queue:\n  lane: '007'\n" in done.stdout, done.stderr
    assert '"Where the job waits."' in in_a_new_process(folder, "schema").stdout


def test_a_section_without_its_launcher_says_so(folder):
    (folder / "job.yaml").write_text("name: digits\nfunction: m:f\ngridengine: {lane: slow}\n")
    output = call("check", code=2)
    assert "unknown key 'gridengine'" in output
    assert "or the section of a launcher: kubernetes, slurm are installed here" in output


BROKEN = [
    pytest.param({"plugin": "import nothing_of_that_name"}, "named 'nothing_of_that_name'", id="import"),
    pytest.param({"plugin": "PLUGIN = 3"}, "is a int, not a Plugin", id="no plug-in"),
    pytest.param({"value": "a_queue.plugin:OTHER"}, "has no attribute 'OTHER'", id="attribute"),
]


@pytest.mark.parametrize(("broken", "reason"), BROKEN)
def test_one_that_does_not_import_is_named_with_its_distribution_and_the_others_work(folder, broken, reason):
    install(folder / "site", **broken)
    output = call("ls")
    assert "The launcher 'queue' of queue-of-the-lab 1.2 is skipped" in output
    assert reason in output
    assert "Traceback" not in output
    assert "STATE" in output
    done = in_a_new_process(folder, "render", "--to", "queue")
    assert (done.returncode, reason in done.stderr) == (2, True)


def test_one_whose_launcher_is_of_another_class_is_named_with_the_class(folder):
    install(
        folder / "site",
        plugin=PLUGIN.replace(", section=Section", ""),
        launcher=LAUNCHER.replace("Queue(Launcher)", "Queue"),
    )
    done = in_a_new_process(folder, "stop", "job.yaml", "--to", "queue")
    assert done.returncode == 2
    assert "queue-of-the-lab 1.2 is skipped: it is a Queue, not a Launcher" in done.stderr


def test_two_of_one_name_are_both_named(folder):
    install(folder / "site")
    install(folder / "site", distribution="another-queue", value="a_queue.other:PLUGIN")
    done = in_a_new_process(folder, "render", "--to", "queue")
    output = done.stderr
    assert done.returncode == 2
    assert "queue-of-the-lab 1.2 (a_queue.plugin:PLUGIN)" in output
    assert "another-queue 1.2 (a_queue.other:PLUGIN)" in output
