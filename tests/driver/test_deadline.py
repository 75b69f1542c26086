"""A call to Ray that does not return ends the driver with a result."""

import sys

import pytest
from ray.exceptions import ActorUnschedulableError

from clustertrain.driver import trainer
from clustertrain.driver.ray_internals import WorkerGroup, WorkerGroupStartupFailedError
from clustertrain.run.folder import RunDir
from commands import ran

pytestmark = pytest.mark.slow

_WORKERS_HANG = """
import sys, time
from clustertrain.driver.trainer import StartDeadline
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.folder import RunDir
attempt = RunDir.newest(sys.argv[1], "a").attempt(1)
deadline = StartDeadline(AttemptRef.of(attempt), 1.0)
with deadline.on_worker_group_start():
    deadline.after_worker_group_start(None)
    time.sleep(2)  # data is staged
with deadline.on_worker_group_start():
    time.sleep(600)  # the call
"""


def test_a_call_that_does_not_return_is_the_result_and_is_in_the_log(tmp_path):
    command = [sys.executable, "-c", _WORKERS_HANG, str(tmp_path)]
    done = ran(command, code=3, timeout=200)
    line = next(n for n, each in enumerate(_WORKERS_HANG.splitlines(), 1) if each.endswith("# the call"))
    assert f'File "<string>", line {line} in <module>' in done.stderr
    result = RunDir.newest(str(tmp_path), "a").attempt(1).result.read()
    assert (result.state, result.cause, result.exit_code) == ("failed", "cluster", 3)
    assert result.text.startswith("Ray did not start the processes of the workers within 1 s")


def test_workers_that_ray_has_no_process_for_at_the_deadline_are_started_again(monkeypatch):
    def create(*args):
        raise ActorUnschedulableError("its associated placement group was removed")

    monkeypatch.setattr(WorkerGroup, "_start_impl", create)
    with pytest.raises(WorkerGroupStartupFailedError):  # which Ray Train repeats
        trainer._Group._start_impl(object.__new__(trainer._Group))
