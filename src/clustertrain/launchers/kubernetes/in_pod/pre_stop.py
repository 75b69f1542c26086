"""What a pod does before it goes (preStop): the kubelet sends TERM when this has ended.

A worker's pod asks for a save and waits until it is committed: the others go on from there. The head's pod
asks the run to stop, and waits until it has: the driver goes with it. Where the run is asked to stop as a
whole, as when its RayJob is deleted, both wait for that. Where storage is on S3, what the ranks of the pod
wrote goes up last.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from clustertrain import variables
from clustertrain.checkpoints.manifest import names
from clustertrain.errors import ClusterTrainError
from clustertrain.job.file import parse_job
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.records import SaveRequest, StopRequest
from clustertrain.run.shipping import Shipping, attempts_here
from clustertrain.waiting import wait_until

_POLL_S = 0.3
_SEND_S = 5.0
_SETTLES_S = 1.5  # a stop that is asked everywhere at once is seen by then


def main(role: str) -> int:
    """Returns 0, whatever happened: a preStop that fails is an event that says nothing."""
    job_file = Path(os.environ[variables.JOB])
    try:
        job = parse_job(job_file.read_text(), str(job_file))
        run = RunDir.newest(job.storage.location, job.name)
        attempt = run.newest_attempt()
        if attempt is not None and not attempt.result.exists():
            (_stop if role == "head" else _save)(attempt, job.failures.grace_s)
        if role == "worker":
            _send_streams(run)
    except (ClusterTrainError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 0


def _stop(attempt: Attempt, grace_s: float) -> None:
    time.sleep(_SETTLES_S)
    if attempt.stop.read() is None:
        attempt.stop.write(StopRequest("preempted", "preempted"))
    wait_until(attempt.result.exists, grace_s - _SETTLES_S, _POLL_S)


def _save(attempt: Attempt, grace_s: float) -> None:
    """Ask for a save and wait for its checkpoint; where the run is asked to stop, wait for its result."""
    before = names(attempt.run.checkpoints)
    attempt.save.write(SaveRequest(pod=os.environ[variables.POD]))
    requested_at = time.monotonic()

    def may_end() -> bool:
        if attempt.result.exists():
            return True
        is_settled = time.monotonic() - requested_at > 2 * _SETTLES_S
        return is_settled and attempt.stop.read() is None and names(attempt.run.checkpoints) != before

    wait_until(may_end, grace_s, _POLL_S)


def _send_streams(run: RunDir) -> None:
    """The head's are sent by the driver's keeper, which knows their end."""
    for attempt in attempts_here(run):
        Shipping(attempt, print).send(_SEND_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
