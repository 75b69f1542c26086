"""The loop beside a driver: an error of its own ends the run, and nothing of it is left then.

tests/whole/test_endings.py has the signals.
"""

import sys

import pytest

from clustertrain.node.processes import Process
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.storage.record_file import RecordFile
from support.commands import ran
from support.sample_records import sample_claim

# A process of its own, since the loop kills all descendants of its process. The loop raises an error once its
# driver, which is a program that writes the events of one and waits for ever, trains.
SUPERVISED = """
import os, sys
from pathlib import Path
from clustertrain.errors import StorageError
from clustertrain.observe.screen import Lines
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.supervise.process import Guarded
from clustertrain.supervise.supervisor import supervise

broken, ref, folder, driver = sys.argv[1:]
folder = Path(folder)
BROKEN = {
    "storage": StorageError("no space is left"),
    "disk": OSError(30, "Read-only file system", "events-cli.jsonl"),
    "full": OSError(28, "No space left on device"),
}

class Broken:
    def end_now(self, is_training):
        if is_training:
            raise BROKEN[broken]

def start():
    (folder / "private").mkdir()
    command = [sys.executable, "-c", driver, ref]
    return Guarded(command, folder / "driver.log", folder / "private", os.environ)

supervise(AttemptRef.from_text(ref).open(), start, Broken(), Lines(sys.stdout))
"""
DRIVER = """
import signal, sys
from clustertrain.node.processes import Process, this_process
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.storage.record_file import RecordFile

attempt = AttemptRef.from_text(sys.argv[1]).open()
RecordFile(attempt.run.store, "driver.json", Process).write(this_process())
EventLog(attempt.events).write("group_started", restart=0, world_size=1, ranks=[])
signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("storage", "no space is left"),
        ("disk", "events-cli.jsonl: Read-only file system."),
        ("full", "{attempt}: No space left on device."),
    ],
)
def test_an_error_of_the_loop_ends_the_run_as_failed(tmp_path, broken, text):
    attempt = RunDir.newest(str(tmp_path / "runs"), "digits").attempt(1)
    attempt.claim.create(sample_claim(world_size=1))
    ref = AttemptRef.of(attempt).to_text()
    ran([sys.executable, "-c", SUPERVISED, broken, ref, str(tmp_path), DRIVER], code=0, timeout=300)
    assert RecordFile(attempt.run.store, "driver.json", Process).read().is_gone
    result = attempt.result.read()
    assert (result.state, result.exit_code) == ("failed", 4)
    assert result.text == text.format(attempt=attempt.path)
