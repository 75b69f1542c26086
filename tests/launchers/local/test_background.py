"""This machine as a launcher: its jobs are processes; tests/launchers/test_contract.py has the contract."""

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
from clustertrain.launchers.local.scheduler import SCHEDULER
from support.leftovers import left_after, living_descendants

pytestmark = pytest.mark.slow


def job_of(folder):
    return SiteJob(load_job({"name": "a", "function": "m:f", "storage": str(folder / "runs")}))


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a line of shell as a submitted run; what is left of it is ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before, job = set(living_descendants()), job_of(tmp_path)

    def submit(line):
        monkeypatch.setattr("clustertrain.launchers.local.scheduler.program_of", lambda _: ["sh", "-c", line])
        return SCHEDULER.submit(job, "", {})

    yield submit
    for pid in left_after(0, before):
        os.kill(pid, signal.SIGKILL)


def test_a_job_is_the_leader_of_a_session_and_its_output_is_in_a_file(start, tmp_path):
    job = start("echo said; echo failed >&2; sleep 60")
    pid = int(job.job_id.partition("-")[0])
    ends = time.monotonic() + 10
    while (printed := Path(job.output).read_text()) != "said\nfailed\n":
        assert time.monotonic() < ends, printed
        time.sleep(0.05)
    assert os.getsid(pid) == pid
    assert job.output.startswith(str(tmp_path / "state"))
    start("exit")
    assert Path(job.output).read_text() == "", "of the newest start"


def test_a_run_that_is_stopped_before_its_attempt_is_cancelled(start, tmp_path, monkeypatch):
    (tmp_path / "m.py").write_text("def f(config): pass\n")
    (tmp_path / "job.yaml").write_text("name: a\nfunction: m:f\nstorage: runs\n")
    monkeypatch.setattr("clustertrain.launchers.local.scheduler.program_of", lambda _: ["sleep", "60"])
    called(tmp_path, "submit", "--to", "local", "--no-check")
    assert "waiting (nodes): started; it has begun no attempt yet" in called(tmp_path, "status")
    assert "was cancelled: there was nothing to save yet" in called(tmp_path, "stop")
    assert "cancelled (cancelled)" in called(tmp_path, "status")


def called(folder, command, *options):
    result = CliRunner().invoke(main, [command, *options, str(folder / "job.yaml")])
    assert result.exit_code == 0, result.output
    return result.output


def test_another_process_with_the_pid_of_a_job_is_not_the_job(start):
    job = start("sleep 60")
    job_id, another = job.job_id, replace(job, job_id=f"{job.job_id}0")
    assert [*SCHEDULER.query([job, another])] == [job_id]
    SCHEDULER.cancel(another)
    SCHEDULER.cancel_waiting(job)
    assert job_id in SCHEDULER.query([job]), "it does not wait"


def test_a_job_that_ignores_the_request_to_end_is_killed(start, monkeypatch):
    monkeypatch.setattr("clustertrain.launchers.local.scheduler._KILLED_AFTER_S", 0.5)
    job = start("trap '' TERM; echo ready; sleep 60; sleep 60")
    while "ready" not in Path(job.output).read_text():
        time.sleep(0.05)
    SCHEDULER.cancel(job)
    assert not SCHEDULER.query([job])


def test_what_a_program_printed_that_ended_at_once_is_the_error(start, monkeypatch):
    monkeypatch.setattr("clustertrain.launchers.local.scheduler.process_of", lambda pid: time.sleep(1))
    with pytest.raises(ClusterError, match=r"(?s)ended at once.*no such file"):
        start("echo no such file")
