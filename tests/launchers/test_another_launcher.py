"""A launcher from another distribution: real metadata on the path, as pip installs it."""

import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.job import launcher_plugins
from clustertrain.job.file import load_job
from clustertrain.launchers.known_runs import KnownRun, record_known_run
from clustertrain.launchers.scheduler.start import main as main_of_start
from clustertrain.node import installed
from clustertrain.run_files.folder.run_dir import RunDir
from support.commands import ran
from support.sample_records import sample_submission

pytestmark = pytest.mark.slow

SCHEDULER = """
from clustertrain.launcher import ClusterError, Scheduler, Sent, State, run
from clustertrain.observe.status_json import StoredStatus

class Reach:
    def lines(self, target, command):
        yield f"{' '.join(command)} there"

    def sent(self, target):
        return Sent(target.known.job_id)

    def status(self, target, *, existed=False):
        rows = (("run", target.submitted_job.name), ("state", "running (training)"))
        return StoredStatus(state="running", cause="training", rows=rows)

class Queue(Scheduler):
    label = "queue"

    def script(self, job, needs):
        return needs.program("$ID")

    def submit(self, job, script, environment):
        return Sent("77")

    def query(self, jobs):
        return {job.job_id: State("R", "runs") for job in jobs}

    def cancel(self, job):
        pass

SCHEDULER, REACH = Queue(), Reach()
"""
PLUGIN = """
from clustertrain.launcher import LauncherSection, Plugin

class Section(LauncherSection):
    \"\"\"Settings for the queue of the lab.\"\"\"

    text_keys = frozenset(("lane",))

    lane: str = "slow"
    \"\"\"Where the job waits.\"\"\"

PLUGIN = Plugin("a_queue.scheduler:SCHEDULER", section=Section)
"""
ELSEWHERE = PLUGIN.replace("section=Section", 'reach="a_queue.scheduler:REACH"')


def install(
    folder,
    *,
    plugin=PLUGIN,
    scheduler=SCHEDULER,
    distribution="queue-of-the-lab",
    value="a_queue.plugin:PLUGIN",
    name="queue",
):
    """Write a package and its metadata into a folder."""
    package = folder / "a_queue"
    package.mkdir(parents=True, exist_ok=True)
    for module, text in (("__init__", ""), ("plugin", plugin), ("scheduler", scheduler)):
        (package / f"{module}.py").write_text(text)
    info = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[clustertrain.launchers]\n{name} = {value}\n")


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
    (tmp_path / "m.py").write_text("def f(config): pass\n")
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
    install(folder / "site", plugin=ELSEWHERE)  # without a section: the fields of Job exist already
    known = KnownRun.of(load_job("job.yaml"), "job.yaml", "queue", "queue of the lab", "77")
    assert record_known_run(replace(known, storage_there="/there/runs")) is None


@pytest.fixture
def submitted_here(folder):
    """Installs a launcher whose query does this, and records a job of it in the storage."""

    def install_it(query):
        wrong = SCHEDULER.replace('return {job.job_id: State("R", "runs") for job in jobs}', query)
        install(folder / "site", plugin=PLUGIN.replace(", section=Section", ""), scheduler=wrong)
        run = RunDir.newest("runs", "digits")
        run.submission("queue", "77").write(
            replace(sample_submission("77"), scheduler="queue", time=time.time())
        )

    return install_it


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("name", ["job.yaml", "runs/digits", "/there/runs/digits"])
def test_the_commands_reach_it(name):
    assert "running (training)" in call("status", name)
    assert call("stop", name) == "stop there\nqueue job 77 is deleted; its storage stays\n"
    assert call("ckpt", "ls", name) == "ckpt ls there\n"
    assert call("data", "ls") == "data ls there\n"
    _, line = call("ls").splitlines()
    assert line.split()[:2] == ["digits", "unknown"] and "queue of the lab, job 77" in line
    assert f"status {Path.cwd()}/runs/digits` reads its state" in line


def test_its_section_belongs_to_the_job_file_and_to_the_schema(folder):
    install(folder / "site")
    (folder / "job.yaml").write_text("name: digits\nfunction: m:f\nqueue: {lane: 007}\n")
    done = in_a_new_process(folder, "check", "--no-code", "--defaults")
    assert "queue:\n  lane: '007'\n" in done.stdout, done.stderr
    assert '"Where the job waits."' in in_a_new_process(folder, "schema").stdout


def test_a_section_without_its_launcher_says_so(folder):
    (folder / "job.yaml").write_text("name: digits\nfunction: m:f\ngridengine: {lane: slow}\n")
    output = call("check", code=2)
    assert "unknown key 'gridengine'" in output
    assert "or the section of a launcher: kubernetes, slurm are installed here" in output


def test_two_of_one_name_are_both_named(folder):
    install(folder / "site")
    install(folder / "site", distribution="another-queue", value="a_queue.other:PLUGIN")
    done = in_a_new_process(folder, "render", "--to", "queue", "job.yaml")
    output = done.stderr
    assert done.returncode == 2
    assert "queue-of-the-lab 1.2 (a_queue.plugin:PLUGIN)" in output
    assert "another-queue 1.2 (a_queue.other:PLUGIN)" in output


# ------------------------------------------------------------------------------- mistakes of an author

NO_DEFAULT = PLUGIN.replace('lane: str = "slow"', "lane: str")
NO_SECTION = PLUGIN.replace("Section(LauncherSection)", "Section").replace("frozenset", "tuple")
WRONG = [
    pytest.param({"plugin": "import nothing_of_that_name"}, "named 'nothing_of_that_name'", id="import"),
    pytest.param({"plugin": "PLUGIN = 3"}, "is a int, not a Plugin", id="no plug-in"),
    pytest.param({"value": "a_queue.plugin:OTHER"}, "has no attribute 'OTHER'", id="attribute"),
    pytest.param({"plugin": NO_DEFAULT}, "a_queue/plugin.py:4 has a key without a default", id="no default"),
    pytest.param({"plugin": NO_SECTION}, "not a subclass of LauncherSection", id="another class"),
    pytest.param({"name": "train"}, "train is a key of the job file", id="a key of the job file"),
    pytest.param({"plugin": PLUGIN.replace("section=", "api=2, section=")}, "is for interface 2", id="api"),
]


@pytest.mark.parametrize(("wrong", "reason"), WRONG)
def test_a_plugin_with_a_mistake_is_skipped_with_the_reason_and_every_other_command_works(
    folder, wrong, reason
):
    install(folder / "site", **wrong)
    name = wrong.get("name", "queue")
    listed = call("ls")
    assert f"The launcher '{name}' of queue-of-the-lab 1.2 is skipped" in listed
    assert reason in listed and "Traceback" not in listed and "STATE" in listed
    call("check", "--no-code", "job.yaml")
    call("render", "--to", "slurm", "--set", "slurm.python=p")
    done = in_a_new_process(folder, "render", "--to", name)
    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


def test_a_scheduler_of_another_class_is_named_with_the_class(folder):
    install(folder / "site", scheduler=SCHEDULER.replace("Queue(Scheduler)", "Queue"))
    done = in_a_new_process(folder, "stop", "job.yaml", "--to", "queue")
    assert done.returncode == 2
    skipped = "queue-of-the-lab 1.2 is skipped: a_queue.scheduler:SCHEDULER is a Queue, not a Scheduler"
    assert skipped in done.stderr


def test_the_section_of_one_that_is_skipped_is_an_unknown_key_with_the_reason(folder):
    install(folder / "site", plugin=NO_DEFAULT)
    (folder / "job.yaml").write_text("name: digits\nfunction: m:f\nqueue: {lane: fast}\n")
    done = in_a_new_process(folder, "check", "--no-code", "job.yaml")
    assert done.returncode == 2
    assert "unknown key 'queue'\nThe launcher 'queue' of queue-of-the-lab 1.2 is skipped" in done.stderr


def test_a_clash_with_a_launcher_of_the_kit_keeps_that(folder):
    install(folder / "site", name="slurm")
    done = in_a_new_process(folder, "render", "--to", "slurm", "job.yaml", "--set", "slurm.python=p")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH" in done.stdout
    listed = in_a_new_process(folder, "ls")
    assert "Uninstall the one that is not clustertrain" in listed.stdout + listed.stderr


PHASE = 'return {job.job_id: State("R", "runing") for job in jobs}'


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ('raise KeyError("state")', "KeyError: 'state'"),
        (PHASE, "State.phase is 'runing', and the phases are waits, held"),
    ],
)
def test_a_query_with_a_mistake_is_no_answer_with_its_place_in_the_code(folder, submitted_here, query, told):
    submitted_here(query)
    for output in (call("status", "job.yaml"), call("ls")):
        assert told in output
        assert "queue-of-the-lab 1.2" in output and "a_queue/scheduler.py:" in output


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ('return "12.server"', "queue has accepted the job as 12.server. Cancel it: `"),
        ("return None", "The job may be queued: look there with the commands of queue"),
        ('raise KeyError("id")', "The job may be queued: look there with the commands of queue"),
        (
            'error = ClusterError("the answer was cut"); error.job_id = "13"; raise error',
            "the answer was cut\nqueue has accepted the job as 13. Cancel it: `",
        ),
    ],
)
def test_a_job_that_was_accepted_before_a_mistake_is_named(folder, ends, told):
    scheduler = SCHEDULER.replace('return Sent("77")', ends)
    install(folder / "site", scheduler=scheduler)
    done = in_a_new_process(folder, "submit", "--to", "queue", "--no-check", "job.yaml")
    assert (done.returncode, told in done.stderr) == (3, True), done.stderr
    if "accepted" in told:
        status = in_a_new_process(folder, "status", "job.yaml")
        assert "queue 1" in status.stdout, status.stderr


@pytest.mark.parametrize(
    ("check", "commands", "told"),
    [
        ("run(['false'])", (["check", "--no-code"],), "false ended with code 1"),
        (
            "pass",
            (["check", "--no-code"], ["submit", "--no-check"]),
            "check of the launcher queue of queue-of-the-lab 1.2 failed: TypeError: 'NoneType'",
        ),
    ],
    ids=["refuses", "returns nothing"],
)
def test_what_a_check_raises_is_a_refusal_and_what_it_does_not_return_a_mistake(
    folder, check, commands, told
):
    checks = f"    def check(self, job, script):\n        {check}\n\n    def script"
    install(folder / "site", scheduler=SCHEDULER.replace("    def script", checks))
    for command in commands:
        done = in_a_new_process(folder, *command, "--to", "queue", "job.yaml")
        assert (done.returncode, told in done.stderr) == (3, True), done.stderr


def test_a_job_whose_python_lacks_the_plugin_ends_before_its_attempt(folder, capfd):
    assert main_of_start(["queue", "77", "job.yaml"]) == 3
    printed = capfd.readouterr().err
    assert "There is no launcher 'queue'" in printed
    assert f"Install its distribution on {socket.gethostname()}, in {sys.executable}" in printed
    assert not Path("runs").exists()
