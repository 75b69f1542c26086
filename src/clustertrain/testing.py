"""Tests for the author of a launcher: the contract of a scheduler. It needs pytest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest
import yaml

from clustertrain.errors import ClusterError, JobError
from clustertrain.job import launcher_plugins
from clustertrain.job.file import load_job
from clustertrain.job.site import SiteJob, with_site
from clustertrain.launchers.known_runs import KnownRun, record_known_run
from clustertrain.launchers.listing import list_runs
from clustertrain.launchers.lookup import launcher_of
from clustertrain.launchers.scheduler.interface import Phase, Scheduler, Sent, State
from clustertrain.launchers.scheduler.submit import script_of
from clustertrain.launchers.shell import run
from clustertrain.node import variables
from clustertrain.run_files.admission import Options
from clustertrain.run_files.command_line import typed
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.submission import record

SUBMISSION = "0123456789abcdef"
_OPTIONS = Options(command=typed("submit", "job.yaml"))
_WITHIN_S = 60.0
_SAYS_WHAT_IT_GOT = f"echo ${variables.SUBMISSION} > submission.new\nmv submission.new submission\n"
_RUNS_FOR_LONG = "exec sleep 60\n"


class SchedulerContract:
    """What every scheduler has to fulfil. A test of a launcher is a subclass in a test file of pytest.

        class TestMine(SchedulerContract):
            launcher = "mine"

    A test that a scheduler cannot pass, because none of its jobs waits for example, is set to None.

    Attributes:
        launcher: the name of the entry point.
        sections: what every job file has here.
        refused: the part of a job file that is refused before the submission.
        header: the lines of options without which a script is not accepted, or is not started in this folder
            with the variable of the submission.
        held: the line of options with which a job waits, such as "#SBATCH --hold".
        unknown: a job that the scheduler does not have.
    """

    launcher: ClassVar[str]
    sections: ClassVar[Mapping[str, Any]] = {}
    refused: ClassVar[Mapping[str, Any]] = {"resources": {"workers": 2, "nodes": 2}}
    header: ClassVar[str] = ""
    held: ClassVar[str] = ""
    unknown: ClassVar[Sent] = Sent("99999")

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv(variables.SITE, "")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    @pytest.fixture
    def scheduler(self) -> Scheduler:
        return launcher_of(self.launcher).scheduler

    def job(self, **sections: Any) -> SiteJob:
        """Return a job of a job file with these sections."""
        job = {"name": "contract", "function": "m:f", "storage": "runs", **self.sections, **sections}
        Path("job.yaml").write_text(yaml.safe_dump(job))
        return with_site(load_job("job.yaml"))

    def script(self, job: SiteJob) -> str:
        return script_of(launcher_of(self.launcher).queue, job, _OPTIONS)

    def sent(self, scheduler: Scheduler, program: str, options: str = "") -> Sent:
        """Submit a job that runs this program of the shell."""
        script = f"#!/bin/bash\n{self.header}{options}{program}"
        sent = scheduler.submit(self.job(), script, {variables.SUBMISSION: SUBMISSION})
        assert isinstance(sent, Sent), f"submit returned {sent!r}, not a Sent"
        return sent

    def received(self, scheduler: Scheduler, sent: Sent) -> str:
        """Return the submission that a job got, after its end."""
        return Path("submission").read_text().strip()

    def wait(
        self, scheduler: Scheduler, sent: Sent, condition: Callable[[State | None], bool]
    ) -> State | None:
        """Wait until the state of a job meets the condition; each state on the way is a legal one."""
        ends = time.monotonic() + _WITHIN_S
        while True:
            states = scheduler.query([sent])
            assert set(states) <= {sent.job_id}
            state = states.get(sent.job_id)
            assert state is None or (isinstance(state, State) and state.phase in get_args(Phase))
            if condition(state):
                return state
            assert time.monotonic() < ends, state
            time.sleep(0.3)

    def test_its_name_is_that_of_the_entry_point(self, scheduler: Scheduler) -> None:
        assert launcher_of(self.launcher).name == self.launcher
        assert scheduler.label

    def test_the_same_job_gives_the_same_script_which_render_prints(self) -> None:
        script = self.script(self.job())
        assert script == self.script(self.job())
        command = [
            sys.executable,
            "-P",
            "-m",
            "clustertrain.cli",
            "render",
            "--to",
            self.launcher,
            "job.yaml",
        ]
        assert run(command).stdout == script

    def test_a_script_creates_nothing_and_asks_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, before = self.job(), {*tmp_path.iterdir()}
        monkeypatch.setenv("PATH", "")
        self.script(job)
        assert {*tmp_path.iterdir()} == before

    def test_a_refusal_names_what_is_wrong_in_two_or_three_lines(self) -> None:
        with pytest.raises(JobError) as refusal:
            self.script(self.job(**self.refused))
        assert 2 <= len(str(refusal.value).splitlines()) <= 3

    def test_a_check_returns_texts(self, scheduler: Scheduler) -> None:
        job = self.job()
        notes = scheduler.check(job, self.script(job))
        assert isinstance(notes, Iterable), f"check returned {notes!r}, not texts"
        assert all(isinstance(note, str) for note in notes)

    def test_an_unknown_job_is_neither_a_state_nor_an_error(self, scheduler: Scheduler) -> None:
        assert dict(scheduler.query([self.unknown])) == {}

    def test_cancelling_an_unknown_job_is_no_error(self, scheduler: Scheduler) -> None:
        scheduler.cancel(self.unknown)

    def test_without_its_commands_nothing_is_answered_or_sent(
        self, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ClusterError) as no_answer:
            scheduler.query([self.unknown])
        assert str(no_answer.value).splitlines()[0]
        with pytest.raises(ClusterError):
            self.sent(scheduler, _SAYS_WHAT_IT_GOT)

    def test_a_job_gets_its_submission_and_ends_and_cancelling_it_then_is_no_error(
        self, scheduler: Scheduler
    ) -> None:
        sent = self.sent(scheduler, _SAYS_WHAT_IT_GOT)
        assert sent.job_id
        state = self.wait(scheduler, sent, lambda state: state is None or state.is_over)
        assert state is None or state.code in (0, None)
        assert self.received(scheduler, sent) == SUBMISSION
        scheduler.cancel(sent)

    def test_one_query_has_the_states_of_several_jobs(self, scheduler: Scheduler) -> None:
        jobs = [self.sent(scheduler, _RUNS_FOR_LONG) for _ in range(2)]
        try:
            states = scheduler.query([*jobs, self.unknown])
            assert set(states) == {job.job_id for job in jobs}
        finally:
            for job in jobs:
                scheduler.cancel(job)

    def test_a_job_that_waits_is_cancelled_in_the_queue(self, scheduler: Scheduler) -> None:
        sent = self.sent(scheduler, _RUNS_FOR_LONG, self.held)
        try:
            self.wait(scheduler, sent, lambda state: state is not None and state.is_waiting)
            scheduler.cancel_waiting(sent)
            self.wait(scheduler, sent, lambda state: state is None or state.is_over)
        finally:
            scheduler.cancel(sent)

    def test_a_job_that_runs_is_not_cancelled_in_the_queue(self, scheduler: Scheduler) -> None:
        sent = self.sent(scheduler, _RUNS_FOR_LONG)
        try:
            self.wait(scheduler, sent, lambda state: state is not None and state.phase == "runs")
            scheduler.cancel_waiting(sent)
            time.sleep(1)
            state = scheduler.query([sent])[sent.job_id]
            assert state.phase == "runs"
        finally:
            scheduler.cancel(sent)
        self.wait(scheduler, sent, lambda state: state is None or state.is_over)

    def test_a_run_whose_launcher_is_gone_is_a_line_of_ls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        job = self.job()
        record(RunDir.newest(job.storage.location, job.name), self.launcher, self.unknown, "digest")
        record_known_run(KnownRun.of(job, "job.yaml", self.launcher, "there", self.unknown.job_id))
        others = {name: each for name, each in launcher_plugins.plugins().items() if name != self.launcher}
        monkeypatch.setattr(launcher_plugins, "_loaded", lambda: (others, {}))
        assert [row["name"] for row in list_runs().rows] == ["contract"]
