"""A call to Ray that does not return ends the driver with a result."""

import sys

import pytest

from clustertrain.run.folder import RunDir
from commands import ran

pytestmark = pytest.mark.slow

_HANGS = """
import sys, time
from clustertrain.driver.deadline import ending_after, write_no_answer
from clustertrain.run.folder import RunDir
attempt = RunDir.newest(sys.argv[1], "a").attempt(1)
with ending_after(60.0, lambda: write_no_answer(attempt, "not this one")):
    pass
with ending_after(0.2, lambda: write_no_answer(attempt, "Ray does not answer.\\nLook at its log.")):
    time.sleep(600)  # the call
"""
_WORKERS_HANG = """
import sys, time
from clustertrain.driver.trainer import StartDeadline
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.folder import RunDir
deadline = StartDeadline(AttemptRef.of(RunDir.newest(sys.argv[1], "a").attempt(1)), 1.0)
with deadline.on_worker_group_start():
    deadline.after_worker_group_start(None)
    time.sleep(2)  # data is staged
with deadline.on_worker_group_start():
    time.sleep(600)  # the call
"""


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (_HANGS, "Ray does not answer.\nLook at its log."),
        (_WORKERS_HANG, "Ray did not start the processes of the workers within 1 s"),
    ],
    ids=["any", "start of the workers"],
)
def test_a_call_that_does_not_return_is_the_result_and_is_in_the_log(tmp_path, program, text):
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = ran(command, code=3, timeout=200)
    line = next(n for n, each in enumerate(program.splitlines(), 1) if each.endswith("# the call"))
    assert f'File "<string>", line {line} in <module>' in done.stderr
    result = RunDir.newest(str(tmp_path), "a").attempt(1).result.read()
    assert (result.state, result.cause, result.exit_code) == ("failed", "cluster", 3)
    assert result.text.startswith(text)
