"""A call to Ray that does not return ends the driver with a result."""

import sys
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorUnschedulableError, RayActorError
from ray.train.v2.api.exceptions import ControllerError

from clustertrain.driver.trainer import RayStart
from clustertrain.errors import DataError
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import RunDir
from support.commands import ran

pytestmark = pytest.mark.slow

_WORKERS_HANG = """
import sys, time
from types import SimpleNamespace
from clustertrain.driver.trainer import RayStart
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import RunDir
attempt = RunDir.newest(sys.argv[1], "a").attempt(1)
stages = lambda *args: time.sleep(2)
first = RayStart(SimpleNamespace(ref=AttemptRef.of(attempt), answer_s=1.0, run=stages), None)
group = SimpleNamespace(has_started=lambda: False)
assert first.has_trained(SimpleNamespace(fit=lambda: first.begin(group)))
def fit():
    time.sleep(600)  # the call
second = RayStart(SimpleNamespace(ref=AttemptRef.of(attempt), answer_s=1.0), None)
second.has_trained(SimpleNamespace(fit=fit))
"""


def test_a_call_that_does_not_return_is_the_result_and_is_in_the_log(tmp_path):
    command = [sys.executable, "-c", _WORKERS_HANG, str(tmp_path)]
    done = ran(command, code=3, timeout=200)
    line = next(n for n, each in enumerate(_WORKERS_HANG.splitlines(), 1) if each.endswith("# the call"))
    assert f'File "<string>", line {line} in fit' in done.stderr
    result = RunDir.newest(str(tmp_path), "a").attempt(1).result.read()
    assert (result.state, result.cause, result.exit_code) == ("failed", "cluster", 3)
    assert result.text.startswith("Ray did not start the processes of the workers within 1 s")


def test_workers_that_ray_has_no_process_for_at_the_deadline_are_started_again(attempt):
    def fit():
        raise ControllerError(ActorUnschedulableError("its associated placement group was removed"))

    start = SimpleNamespace(ref=AttemptRef.of(attempt), answer_s=60.0)
    assert not RayStart(start, None).has_trained(SimpleNamespace(fit=fit))


def test_what_ray_has_no_name_for_is_raised(attempt):
    def fit():
        raise ControllerError(ValueError("no"))

    start = SimpleNamespace(ref=AttemptRef.of(attempt), answer_s=60.0)
    with pytest.raises(ValueError, match="no"):
        RayStart(start, None).has_trained(SimpleNamespace(fit=fit))


def test_an_error_of_a_start_is_raised_after_fit_and_is_no_failure_of_the_ranks(attempt, monkeypatch):
    """The ranks are ended, so that Ray's next call of them fails."""
    ended = []
    monkeypatch.setattr("ray.kill", ended.append)

    def run(group, set_up):
        raise DataError("d cannot be fetched.")

    start = SimpleNamespace(ref=AttemptRef.of(attempt), answer_s=60.0, run=run)  # has no has_failed
    ray_start = RayStart(start, None)
    worker = SimpleNamespace(actor="rank 0")
    group = SimpleNamespace(has_started=lambda: True, get_workers=lambda: [worker], abort=lambda: None)

    def fit():
        ray_start.begin(group)
        assert ended == ["rank 0"]
        raise ControllerError(RayActorError())

    with pytest.raises(DataError):
        ray_start.has_trained(SimpleNamespace(fit=fit))
