"""A call to Ray that does not return ends the driver with a result."""

import subprocess
import sys

from clustertrain.run.folder import RunDir

_HANGS = """
import sys, time
from clustertrain.driver.deadline import ending_after
from clustertrain.run.folder import RunDir
attempt = RunDir.newest(sys.argv[1], "a").attempt(1)
with ending_after(60.0, attempt, "not this one"):
    pass
with ending_after(0.2, attempt, "Ray does not answer.\\nLook at its log."):
    time.sleep(600)
"""


def test_a_call_that_does_not_return_is_the_result_and_is_in_the_log(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _HANGS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert 'File "<string>", line 9 in <module>' in done.stderr
    result = RunDir.newest(str(tmp_path), "a").attempt(1).result.read()
    assert (result.state, result.cause, result.exit_code) == ("failed", "cluster", 3)
    assert result.text == "Ray does not answer.\nLook at its log."
