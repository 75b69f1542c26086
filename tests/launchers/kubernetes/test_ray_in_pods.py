"""Waiting for the pods of the workers, in a real Ray that has the place of one worker."""

import json
import sys
from dataclasses import replace

import pytest

from clustertrain.errors import EXIT_CLUSTER
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import RunDir
from support.commands import ran
from support.sample_records import sample_claim, sample_failure, sample_restart_claim

pytestmark = pytest.mark.slow

# Ray is one for a process, so another one waits: first for one worker, then for two, then for two by itself
# after one was lost, then until it is told to stop.
WAITING = """
import json, ray, sys
from clustertrain.errors import ClusterError, RunStopped
from clustertrain.driver.ray_cluster import Deadline
from clustertrain.driver.retry_policy import RetryPolicy
from clustertrain.driver.world_size import Workers
from clustertrain.launchers.kubernetes.ray import PodRay
from clustertrain.node.ray_settings import WORKER_SLOT
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.records.requests import StopRequest

slots = {WORKER_SLOT: 1}
ray.init(address="local", num_cpus=1, resources=slots, log_to_driver=False, include_dashboard=False)
ref = AttemptRef.from_text(sys.argv[1])
attempt = ref.open()
stop = lambda: attempt.stop.write(StopRequest("user"))
address = ray.get_runtime_context().gcs_address
ray_in = lambda seconds: PodRay(address, Deadline(seconds, "kubernetes.start_deadline"), 0.0)
ray_in(0.0).wait_for_workers(attempt, (1,))
said = []
policy = RetryPolicy(ref, 3, ray_in(0.4), world_sizes=(2,))
for wait in (
    lambda: ray_in(0.3).wait_for_workers(attempt, (2,)),
    lambda: said.append(policy.after_failure(Workers(2)).text),
    lambda: stop() or ray_in(60.0).wait_for_workers(attempt, (2,)),
):
    try:
        wait()
    except (ClusterError, RunStopped) as error:
        said.append([type(error).__name__, str(error)])
print(json.dumps(said))
"""


@pytest.mark.timeout(600)
def test_pods_that_do_not_come_end_the_wait_and_so_does_a_request_to_stop(tmp_path):
    attempt = RunDir.newest(str(tmp_path), "digits").attempt(1)
    attempt.claim.create(sample_claim())
    restart = attempt.restart(0)
    restart.claim.create(sample_restart_claim())
    lost = sample_failure(step=7, signal=9, signature="rank 1 signal 9")
    restart.failure.write(replace(lost, text="rank 1 was lost with its pod."))

    text = AttemptRef.of(attempt).to_text()
    done = ran([sys.executable, "-c", WAITING, text], code=0, timeout=100)
    at_first, after_a_loss, stopped = json.loads(done.stdout.splitlines()[-1])
    words = "Waiting for pods of 2 workers, have 1 after {} s (kubernetes.start_deadline)."
    assert at_first[0] == "ClusterError"
    assert at_first[1].startswith(words.format("0.3")) and "kubectl describe pod" in at_first[1]
    assert after_a_loss.startswith("rank 1 was lost with its pod.\n" + words.format("0.4"))
    assert stopped == ["RunStopped", "Stopped before all pods were there."]

    noted = restart.failure.read()
    assert noted.text.startswith("rank 1 was lost with its pod.\n" + words.format("0.4"))
    assert noted.run_exit_code == EXIT_CLUSTER
