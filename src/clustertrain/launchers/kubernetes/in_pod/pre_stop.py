"""The preStop hook of a pod. The kubelet sends SIGTERM after it has ended.

A worker's pod requests a save and waits until the checkpoint is committed: the other workers continue from
it. The head's pod requests a stop of the run and waits for its end, since the driver ends with this pod. If
the whole run is stopped, as when its RayJob is deleted, both wait for its end. With storage on S3, a worker's
pod then sends what its ranks wrote.

KubeRay deletes the pods of a run that has ended all at once. The workers' pods go, and free their GPUs; the
head's pod stays for kubernetes.ttl, since its preStop hook waits that long. The next `submit` of the run ends
the wait by a file in the pod: a kubelet that is given a shorter grace period does not end a hook.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from clustertrain.checkpoints.manifest import names
from clustertrain.errors import ClusterTrainError
from clustertrain.launchers.kubernetes.in_pod.this_pod import job_of_pod
from clustertrain.launchers.kubernetes.render.paths import LEAVE_FILE
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.node import variables
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.claims import claim_of
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.records.requests import SaveRequest, StopRequest
from clustertrain.run_files.streams.stream_upload import StreamUpload, attempts_here

_POLL_S = 0.3
_SEND_S = 5.0
_SETTLES_S = 1.5  # a stop that is requested at the same time elsewhere is visible after this


def main(role: str) -> int:
    """Run the hook, and return 0 even after an error.

    A failed hook only creates an event without a message.
    """
    try:
        job = job_of_pod()
        run = RunDir.newest(job.storage.location, job.name)
        attempt = run.newest_attempt()
        if attempt is not None and not attempt.result.exists():
            (_stop if role == "head" else _save)(attempt, job.failures.grace_s)
        elif role == "head" and attempt is not None and _is_kept(attempt):
            wait_until(Path(LEAVE_FILE).exists, job.section(Kubernetes).ttl_s, _POLL_S)
        if role == "worker":  # in the head's pod the entrypoint sends the driver's streams
            for each in attempts_here(run):
                StreamUpload(each, print).send(_SEND_S)
    except (ClusterTrainError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 0


def _is_kept(attempt: Attempt) -> bool:
    """Return whether this pod has trained to the run's end, and no other head's pod follows."""
    result = attempt.result.read()
    return claim_of(attempt).is_here and result is not None and result.state in ("done", "failed")


def _stop(attempt: Attempt, grace_s: float) -> None:
    time.sleep(_SETTLES_S)
    if attempt.stop.read() is None:
        attempt.stop.write(StopRequest("preempted", "preempted"))
    wait_until(attempt.result.exists, grace_s - _SETTLES_S, _POLL_S)


def _save(attempt: Attempt, grace_s: float) -> None:
    """Request a save and wait for its checkpoint; if a stop is requested, wait for the run's result."""
    before = {*names(attempt.run.checkpoints)}
    attempt.save.write(SaveRequest(pod=os.environ[variables.POD]))
    requested_at = time.monotonic()

    def may_end() -> bool:
        if attempt.result.exists():
            return True
        is_settled = time.monotonic() - requested_at > 2 * _SETTLES_S
        return is_settled and attempt.stop.read() is None and not before >= {*names(attempt.run.checkpoints)}

    wait_until(may_end, grace_s, _POLL_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
