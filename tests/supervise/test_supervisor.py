"""The loop beside a driver: what ends a run, and that nothing of it is left then."""

import json
import signal
import sys

import pytest

from clustertrain.node.processes import Process
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.storage.record_file import RecordFile
from support.commands import ran
from support.sample_records import sample_claim

# A process of its own, since the loop kills all descendants of its process. Its driver is a program that
# writes the events of one, and sends the signals of a case: the first when the loop has seen them, the second
# after the request to stop. Then it waits for this request, or for ever.
SUPERVISED = """
import json, os, sys
from pathlib import Path
from clustertrain.errors import StorageError
from clustertrain.node.signals import handled_signals
from clustertrain.observe.screen import Lines
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.supervise.process import Guarded
from clustertrain.supervise.stop_on_signal import StopOnSignal
from clustertrain.supervise.supervisor import supervise

case, attempt = json.loads(sys.argv[1]), AttemptRef.from_text(sys.argv[2]).open()
folder = Path(sys.argv[3])

BROKEN = {
    "storage": StorageError("no space is left"),
    "disk": OSError(30, "Read-only file system", "events-cli.jsonl"),
    "full": OSError(28, "No space left on device"),
}

class Broken:
    def end_now(self, is_training):
        if is_training:
            raise BROKEN[case["broken"]]

class Seeing(StopOnSignal):
    def end_now(self, is_training):
        if is_training:
            (folder / "training").touch()
        return super().end_now(is_training)

meanings = {2: ("stopped", "interrupt"), 15: ("stopped", "terminated")}
with handled_signals(meanings) as signals:
    command = [sys.executable, "-c", case["driver"], sys.argv[2], str(os.getpid()), sys.argv[3]]

    def start():
        (folder / "private").mkdir()
        return Guarded(command, folder / "driver.log", folder / "private", os.environ)

    policy = Broken() if case["broken"] else Seeing(attempt, signals, meanings, Lines(sys.stdout))
    result = supervise(attempt, start, policy, Lines(sys.stdout))
"""
DRIVER = """
import json, os, subprocess, sys, time
from pathlib import Path
from clustertrain.node.processes import Process, this_process
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.storage.record_file import RecordFile
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result

attempt, supervisor = AttemptRef.from_text(sys.argv[1]).open(), int(sys.argv[2])
RecordFile(attempt.run.store, "driver.json", Process).write(this_process())
if {is_training}:
    EventLog(attempt.events).write("group_started", restart=0, world_size=1, ranks=[])
seen = Path(sys.argv[3], "training")
for number, is_due in zip({numbers}, (lambda: seen.exists() or not {is_training}, attempt.stop.read)):
    while not is_due():
        time.sleep(0.05)
    os.kill(supervisor, number)
while not {obeys} or attempt.stop.read() is None:
    time.sleep(0.05)
write_result(attempt, Result("stopped", attempt.stop.read().cause, 75, step=3))
"""


@pytest.fixture
def attempt(tmp_path):
    attempt = RunDir.newest(str(tmp_path / "runs"), "digits").attempt(1)
    attempt.claim.create(sample_claim(world_size=1))
    return attempt


def supervised(attempt, tmp_path, numbers=(), *, is_training=True, obeys=False, broken=""):
    """The result of a run whose driver does this; no process of it is left."""
    driver = DRIVER.format(is_training=is_training, numbers=[int(n) for n in numbers], obeys=obeys)
    case = json.dumps({"driver": driver, "broken": broken})
    argv = [sys.executable, "-c", SUPERVISED, case, AttemptRef.of(attempt).to_text(), str(tmp_path)]
    done = ran(argv, timeout=300)
    log = tmp_path / "driver.log"
    assert done.returncode == 0, done.stderr + log.read_text()
    assert RecordFile(attempt.run.store, "driver.json", Process).read().is_gone
    return attempt.result.read()


@pytest.mark.slow
def test_the_first_signal_requests_a_stop_and_the_drivers_result_is_kept(attempt, tmp_path):
    result = supervised(attempt, tmp_path, [signal.SIGINT], obeys=True)
    assert (result.state, result.cause, result.step) == ("stopped", "interrupt", 3)
    assert attempt.stop.read().state == "stopped"
    assert (attempt.path / "events-cli.jsonl").exists()


@pytest.mark.slow
def test_a_second_signal_ends_the_run_at_once(attempt, tmp_path):
    result = supervised(attempt, tmp_path, [signal.SIGINT, signal.SIGINT])
    assert (result.state, result.cause) == ("stopped", "interrupted_twice")


@pytest.mark.slow
def test_before_training_one_signal_ends_the_run(attempt, tmp_path):
    result = supervised(attempt, tmp_path, [signal.SIGTERM], is_training=False)
    assert (result.state, result.cause) == ("stopped", "terminated")
    assert attempt.stop.read().cause == "terminated"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("storage", "no space is left"),
        ("disk", "events-cli.jsonl: Read-only file system."),
        ("full", "{attempt}: No space left on device."),
    ],
)
def test_an_error_of_the_loop_ends_the_run_as_failed(attempt, tmp_path, broken, text):
    result = supervised(attempt, tmp_path, broken=broken)
    assert (result.state, result.exit_code) == ("failed", 4)
    assert result.text == text.format(attempt=attempt.path)
