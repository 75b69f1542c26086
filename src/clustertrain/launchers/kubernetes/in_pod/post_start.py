"""Sends to S3 what the ranks of a worker's pod write. On SLURM the agent of each node does this.

The postStart hook starts it beside Ray. It survives ranks that are killed, and ends with its container. After
a restart, the new container of the pod sends the rest. Before a pod ends, pre_stop.py sends the last lines.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.in_pod.this_pod import job_of_pod
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.folder.spool import spool_folder
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.stream_upload import StreamUpload, attempts_here
from clustertrain.storage import open_store

_POLL_S = 1.0


def main() -> None:
    """Send until the container ends."""
    job = job_of_pod()
    sending: set[Path] = set()
    while True:
        for attempt in attempts_here(_run_here(job)):
            if attempt.path not in sending:
                sending.add(attempt.path)
                _upload(attempt).start()
        time.sleep(_POLL_S)


def _run_here(job: Job) -> RunDir:
    """Return the run that the ranks of this pod write to, with its generation, without a request to S3."""
    store = open_store(job.storage.location)
    return RunDir(store, job.name, RunDir.newest(str(spool_folder(store)), job.name).generation)


def _upload(attempt: Attempt) -> StreamUpload:
    """Return a StreamUpload that records its failures as events, which are sent when S3 works again."""
    events = EventLog(attempt.node_events(socket.gethostname()))
    return StreamUpload(attempt, lambda text: events.write("warning", text=text.removeprefix("warning: ")))


if __name__ == "__main__":
    main()
