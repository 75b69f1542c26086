"""Whether failed code is started again: real scripts, and the group that judges their failures."""

import sys
import time
from types import SimpleNamespace

import pytest

from clustertrain.driver.cause import rank_failure
from clustertrain.driver.cause.rank_failure import RankFailures
from clustertrain.run_files.streams.step_counter import Reached
from clustertrain.worker.code.error_report import ErrorReport, Frame
from clustertrain.worker.code.printed_traceback import base_names
from clustertrain.worker.code.user_error import UserCodeFailed
from clustertrain.worker.scripts.script import ScriptFailed
from clustertrain.worker.scripts.script_command import Program
from support.sample_records import sample_restart_claim
from support.script_processes import ran_script

pytestmark = pytest.mark.slow

NO_NETWORK = "import urllib.request as u; u.urlopen('http://no-such-host.invalid/x')"
NO_KEY = "{}['labels']"


def of_one_rank(restart):
    """The failures of a group without processes, of one rank."""
    ranks = SimpleNamespace(restart=restart, attempt=restart.attempt, began_s=time.monotonic(), limits={})
    ranks.workers = {0: SimpleNamespace(metadata=SimpleNamespace(hostname="node1", pid=7))}
    return RankFailures(ranks)


@pytest.fixture
def judged(tmp_path, attempt):
    """The failure that a group reports of a script that failed in a start of its attempt."""

    def judge(text, start=0):
        attempt.restart(start).claim.create(sample_restart_claim())
        (tmp_path / "train.py").write_text(text)
        program = Program("train.py", (sys.executable, "train.py"))
        with pytest.raises(ScriptFailed) as failed:
            ran_script(program, tmp_path, environment={"CUDA_VISIBLE_DEVICES": "", "no_proxy": "*"})
        return of_one_rank(attempt.restart(start)).of_exception(0, failed.value)

    return judge


def test_a_script_that_has_saved_something_may_have_met_a_bad_sample(judged, attempt):
    saved = attempt.run.local_path(attempt.run.checkpoints.key) / "snapshot.pt"
    saved.parent.mkdir(parents=True)
    saved.touch()
    assert not judged(NO_KEY).fatal
    saved.rename(saved.with_name(".snapshot.pt"))  # unfinished
    assert judged(NO_KEY).fatal


def test_a_mistake_in_a_function_costs_a_restart_only_after_a_step(attempt):
    frames = (Frame("train.py", 3, "train"),)
    error = UserCodeFailed(ErrorReport("AttributeError", "lr", base_names("AttributeError"), frames))
    for number in (0, 1):
        attempt.restart(number).claim.create(sample_restart_claim())
        assert of_one_rank(attempt.restart(number)).of_exception(0, error).fatal
    reached = Reached(attempt.run.local_path(attempt.restart(0).reached_key))
    reached.set(1)
    reached.close()
    assert not of_one_rank(attempt.restart(1)).of_exception(0, error).fatal


def test_a_network_that_was_there_may_come_back(judged, monkeypatch):
    """After a restart, or minutes after the start."""
    with monkeypatch.context() as later:
        later.setattr(rank_failure, "BEGINNING_S", 0.0)
        found = [judged(NO_NETWORK)]
    found.append(judged(NO_NETWORK, start=1))
    assert [(failure.fatal, failure.transient) for failure in found] == [(False, True)] * 2
