"""This machine as a launcher: it fulfils the contract of a scheduler, and its jobs are processes."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import ClusterError
from clustertrain.job.file import load_job
from clustertrain.job.site import SiteJob
from clustertrain.launchers.launcher import launcher_of
from clustertrain.launchers.local.launcher import LocalScheduler
from clustertrain.launchers.scheduler.interface import Handle
from clustertrain.run.command_line import UNKNOWN
from launchers.contract import OPTIONS, SUBMISSION, SchedulerContract
from leftovers import left_after, living_descendants

pytestmark = pytest.mark.slow


class TestLocal(SchedulerContract):
    launcher = "local"
    asks_commands = False
    test_a_refusal_names_what_is_wrong_in_two_or_three_lines = None  # its plan refuses no job

    def with_script(self, plan, script):
        return replace(plan, argv=("sh", "-c", script.decode()))


def job_of(folder):
    return SiteJob(load_job({"name": "a", "function": "m:f", "storage": str(folder / "runs")}))


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a line of shell as a submitted run; what is left of it is ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    scheduler, before, job = launcher_of("local").scheduler, set(living_descendants()), job_of(tmp_path)

    def submit(line):
        plan = replace(scheduler.plan(job, OPTIONS), argv=("sh", "-c", line))
        return scheduler.submit(job, plan, SUBMISSION, UNKNOWN)

    yield submit
    for pid in left_after(0, before):
        os.kill(pid, signal.SIGKILL)


def test_a_job_is_the_leader_of_a_session_and_its_output_is_in_a_file(start, tmp_path):
    handle = start("echo said; echo failed >&2; sleep 60")
    pid = int(handle.job_id.partition("-")[0])
    ends = time.monotonic() + 10
    while (printed := Path(handle.output).read_text()) != "said\nfailed\n":
        assert time.monotonic() < ends, printed
        time.sleep(0.05)
    assert os.getsid(pid) == pid
    assert handle.output.startswith(str(tmp_path / "state"))
    start("exit")
    assert Path(handle.output).read_text() == "", "of the newest start"


def test_a_run_that_is_stopped_before_its_attempt_is_cancelled(start, tmp_path, monkeypatch):
    (tmp_path / "m.py").write_text("def f(config): pass\n")
    (tmp_path / "job.yaml").write_text("name: a\nfunction: m:f\nstorage: runs\n")
    plan = replace(launcher_of("local").scheduler.plan(job_of(tmp_path), OPTIONS), argv=("sleep", "60"))
    monkeypatch.setattr(LocalScheduler, "plan", lambda self, job, options: plan)
    called(tmp_path, "submit", "--to", "local", "--no-check")
    assert "waiting (nodes): started; it has not begun its attempt yet" in called(tmp_path, "status")
    assert "was cancelled: there was nothing to save yet" in called(tmp_path, "stop")
    assert "cancelled (cancelled)" in called(tmp_path, "status")


def called(folder, command, *options):
    result = CliRunner().invoke(main, [command, *options, str(folder / "job.yaml")])
    assert result.exit_code == 0, result.output
    return result.output


def test_another_process_with_the_pid_of_a_job_is_not_the_job(start):
    scheduler = launcher_of("local").scheduler
    job = start("sleep 60")
    job_id, another = job.job_id, Handle(f"{job.job_id}0")
    assert [*scheduler.states([job, another]).jobs] == [job_id]
    scheduler.cancel(another)
    scheduler.cancel(job, only_waiting=True)
    assert job_id in scheduler.states([job]).jobs, "it does not wait"


def test_a_job_that_ignores_the_request_to_end_is_killed(start, monkeypatch):
    monkeypatch.setattr("clustertrain.launchers.local.launcher._KILLED_AFTER_S", 0.5)
    scheduler = launcher_of("local").scheduler
    handle = start("trap '' TERM; echo ready; sleep 60; sleep 60")
    while "ready" not in Path(handle.output).read_text():
        time.sleep(0.05)
    scheduler.cancel(handle)
    assert not scheduler.states([handle]).jobs


def test_what_a_program_printed_that_ended_at_once_is_the_error(start, monkeypatch):
    monkeypatch.setattr("clustertrain.launchers.local.launcher.process_of", lambda pid: time.sleep(1))
    with pytest.raises(ClusterError, match=r"(?s)ended at once.*no such file"):
        start("echo no such file")
