"""Storage on S3: the nodes share no folder, and the login node knows of the run what the server does."""

import pytest

from clustertrain.run_files.claims import committed_step
from slurm.slurm_run import PATIENCE_S, SlurmRun, preempt
from support.cluster_jobs import slow
from support.fault_proxy import FaultProxy
from support.s3_servers import ENVIRONMENT
from support.waiting import wait_until
from support.whole_run import same_weights

pytestmark = [pytest.mark.timeout(600), pytest.mark.s3]


@pytest.mark.faults
@pytest.mark.nightly  # in CI: test_training.py preempts a run, whole/test_on_s3.py resumes one from S3
def test_a_preempted_run_resumes_from_s3_and_ends_the_same(cluster, versitygw_s3, tmp_path, uninterrupted):
    with FaultProxy(versitygw_s3.endpoint, cluster.login_address) as door:
        storage = {
            "uri": f"s3://{versitygw_s3.bucket}/runs",
            "endpoint": door.endpoint,
            "region": "us-east-1",
        }
        traveling = [name for name in ENVIRONMENT if name.startswith("AWS_")]
        section = {"partition": "low", "environment": traveling}
        run = SlurmRun(cluster, tmp_path, "on-s3", **slow(1.5), storage=storage, slurm=section).submit()
        wait_until(lambda: committed_step(run.run_dir) >= 4, PATIENCE_S, lambda: run.output, 0.5)
        output = preempt(run)
        first, second = (attempt.result.read() for attempt in run.run_dir.attempts())
        assert (first.state, first.cause, second.state) == ("preempted", "preempted", "done"), output
        (resumed,) = (event for event in run.events if event["kind"] == "resumed")
        assert (resumed["step"], resumed["redone_steps"]) == (first.step, 0)
        assert same_weights(run.weights(), uninterrupted(2))
        told = run.command("logs", str(run.job_file), "--rank", "1").stdout
        assert "clustertrain: restart 0 begins" in told, "what a rank on another node printed has been sent"
