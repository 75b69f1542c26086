"""What every scheduler has to fulfil. A test of a launcher is a subclass:

class TestMine(SchedulerContract):
    launcher = "mine"
    refused = {"resources": {"nodes": 2}}
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import ClusterError, JobError
from clustertrain.job.file import load_job
from clustertrain.job.site import with_site
from clustertrain.launchers.launcher import launcher_of
from clustertrain.launchers.scheduler.interface import Handle
from clustertrain.run.admission import Options
from clustertrain.run.command_line import UNKNOWN, typed

UNKNOWN_JOB = Handle("99999")
OPTIONS = Options(command=typed("submit", "job.yaml"))
SCRIPT = b"""#!/bin/bash
echo "$CLUSTERTRAIN_SUBMISSION" > submission.new
mv submission.new submission
"""
SUBMISSION = '{"not": "read"}'


class SchedulerContract:
    """
    Attributes:
        sections: what every job has here.
        refused: the part of a job that a plan refuses.
        asks_commands: whether the states of jobs come from a command.
    """

    launcher: str
    refused: dict
    sections: ClassVar[dict] = {}
    asks_commands = True

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("CLUSTERTRAIN_SITE", "")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    @pytest.fixture
    def scheduler(self):
        return launcher_of(self.launcher).scheduler

    def job(self, **sections):
        job = {"name": "contract", "function": "m:f", "storage": "runs", **self.sections, **sections}
        Path("job.yaml").write_text(yaml.safe_dump(job))
        return with_site(load_job("job.yaml"))

    def test_the_same_job_gives_the_same_plan_which_render_prints(self, scheduler):
        plan = scheduler.plan(self.job(), OPTIONS)
        assert plan == scheduler.plan(self.job(), OPTIONS)
        shown = CliRunner().invoke(main, ["render", "--to", self.launcher, "job.yaml"])
        assert shown.stdout.encode() == plan.script

    def test_a_plan_creates_nothing(self, scheduler, tmp_path):
        job, before = self.job(), {*tmp_path.iterdir()}
        scheduler.plan(job, OPTIONS)
        assert {*tmp_path.iterdir()} == before

    def test_a_refusal_names_what_is_wrong_in_two_or_three_lines(self, scheduler):
        with pytest.raises(JobError) as refusal:
            scheduler.plan(self.job(**self.refused), OPTIONS)
        assert 2 <= len(str(refusal.value).splitlines()) <= 3

    def test_an_unknown_job_is_neither_a_state_nor_an_error(self, scheduler):
        answer = scheduler.states([UNKNOWN_JOB])
        assert (dict(answer.jobs), answer.no_answer) == ({}, None)

    def test_cancelling_an_unknown_job_is_no_error(self, scheduler):
        scheduler.cancel(UNKNOWN_JOB)

    def test_without_its_commands_nothing_is_answered_or_sent(self, scheduler, monkeypatch, tmp_path):
        job = self.job()
        plan = scheduler.plan(job, OPTIONS)
        monkeypatch.setenv("PATH", str(tmp_path))
        answer = scheduler.states([UNKNOWN_JOB])
        assert not answer.jobs
        assert not self.asks_commands or "\n" not in answer.no_answer
        with pytest.raises(ClusterError):
            scheduler.submit(job, plan, SUBMISSION, UNKNOWN)

    def test_a_job_ends_and_cancelling_it_then_is_no_error(self, scheduler):
        job = self.job()
        plan = self.with_script(scheduler.plan(job, OPTIONS), SCRIPT)
        handle = scheduler.submit(job, plan, SUBMISSION, UNKNOWN)
        ends = time.monotonic() + 60
        while (state := scheduler.states([handle]).jobs.get(handle.job_id)) and not state.is_over:
            assert state.job_id == handle.job_id
            assert time.monotonic() < ends, state
            time.sleep(0.3)
        assert Path("submission").read_text() == f"{SUBMISSION}\n"
        scheduler.cancel(handle)

    def with_script(self, plan, script):
        return replace(plan, script=script)
