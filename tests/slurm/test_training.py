"""Training on a real cluster: what two nodes compute, what SLURM's signals bring about, what is left."""

import re
import sys
import time
from datetime import datetime

import pytest

from slurm.slurm_run import ON_TWO, preempt
from support.cluster_jobs import slow
from support.whole_run import CODE, FAULTY, same_weights

pytestmark = pytest.mark.timeout(600)

FORKED = "workers are forks of a process with torch, Ray and Ray Train"


def test_two_runs_on_the_same_nodes_compute_what_one_machine_does_and_leave_nothing(
    make, cluster, uninterrupted, tmp_path
):
    """A module, which is in the second folder of its code and has an interpreter of its own, and a task, of
    which a rank is killed and continues from the memory of its node. Measured once: 2.8 s from scancel to the
    end of a job, its save included; 20 s are for busy machines."""
    (tmp_path / "project").mkdir()
    script = make(
        "script",
        module="torchrun_script",
        code=[str(tmp_path / "project"), str(CODE)],
        interpreter=sys.executable,
        args=["${CLUSTERTRAIN_CHECKPOINT_DIR}"],
        resources={"cpus_per_worker": 1},
        slurm=ON_TWO,
    ).submit()
    struck = {"fault": "kill", "rank": 1, "at_call": 14, "marker": str(tmp_path / "struck"), "step_s": 0.2}
    saving = {"every": {"epochs": 1}, "memory_every": 1}
    task = make("task", **{**FAULTY, "args": struck, "checkpoint": saving}, slurm=ON_TWO)
    task.command("submit", "--to", "slurm", "--wait", str(task.job_file), code=0)
    task.job_id = task.run_dir.submissions()[-1].job_id
    output_of_script, output = script.wait("COMPLETED"), task.wait("COMPLETED")
    assert task.left_on_nodes() == {}
    for run in (task, script):
        ended_at = datetime.fromisoformat(cluster.job(run.job_id)["EndTime"]).timestamp()
        assert ended_at - (run.attempt.path / "result.json").stat().st_mtime < 20
    ports = [run.attempt.rendezvous.read().port for run in (task, script)]
    assert ports[0] != ports[1]

    result = task.result
    assert (result.state, result.step, result.world_size, result.restarts) == ("done", 21, 2, 1)
    (resumed,) = (event for event in task.events if event["kind"] == "resumed")
    assert resumed["in_memory"] and resumed["step"] + resumed["redone_steps"] == 11, output
    assert f"resuming after step {resumed['step']} (epoch 1), from the memory of the nodes" in output
    starts = [event["ranks"] for event in task.events if event["kind"] == "group_started"]
    hosts = [{rank["host"] for rank in ranks} for ranks in starts]
    assert [len(each) for each in hosts] == [2, 2]
    assert all(FORKED in task.attempt.ray_log(host).read_text() for host in hosts[0])
    assert same_weights(task.weights(), uninterrupted(2))

    assert script.result.state == "done", output_of_script
    assert "rank 0 prints here" in output_of_script
    met = f"sum over 2 ranks: 3; ray: False; args: ['{script.checkpoints}']"
    assert met in output_of_script
    logs = [path.read_text() for path in script.attempt.path.glob("logs/*/rank-*.log")]
    assert [met in log for log in logs] == [True, True], logs
    (port,) = {int(re.search(r"MASTER_PORT=(\d+)", log)[1]) for log in logs}
    assert 10_000 <= port < 32_768  # of the job's block, below the ports of clients


@pytest.mark.faults
def test_a_preempted_run_saves_goes_back_and_ends_the_same(make, cluster, uninterrupted):
    run = make("preempted", **slow(), slurm={"partition": "low"}).submit()
    run.wait_for_step(5)
    output = preempt(run)
    first, second = run.run_dir.attempts()
    ended = first.result.read()
    assert (ended.state, ended.cause, ended.exit_code) == ("preempted", "preempted", 75), output
    assert second.claim.read().allocation.start == "1"
    resumed = [event for event in run.events if event["kind"] == "resumed"]
    assert [(event["step"], event["redone_steps"]) for event in resumed] == [(ended.step, 0)]
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.faults
@pytest.mark.nightly  # in CI: test_slurm_status.py without a controller, and the preempted run goes back
def test_a_controller_that_is_away_stops_no_training_and_a_signal_puts_the_job_back(
    make, cluster, uninterrupted
):
    run = make("limit", **slow(1.5), slurm={"at_time_limit": "requeue"}).submit()
    run.wait_for_step(3)
    cluster.stop_controller()
    run.wait_for_step(6)  # status asks SLURM for 10 s and the heartbeat for 6: the run has 22 s to go
    status = run.command("status", str(run.job_file))
    cluster.start_controller()
    assert status.returncode == 0, status.stderr
    assert "running" in status.stdout
    assert "does not answer" in status.stdout
    cluster.command("scancel", "--signal=USR2", "--batch", run.job_id)  # as before the time limit
    output = run.wait("COMPLETED")
    states = [attempt.result.read().state for attempt in run.run_dir.attempts()]
    assert states == ["preempted", "done"], output
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.faults
@pytest.mark.nightly  # in CI: test_security.py sends this signal
def test_a_time_limit_that_runs_out_finds_the_run_saved_and_the_next_job_goes_on(
    make, cluster, uninterrupted
):
    """SLURM itself sends the signal, at any moment of the second minute."""
    run = make("expiring", **slow(6), slurm={"time_limit": "3m", "lead_time": "60s"}).submit()
    output = run.wait("FAILED", 240)
    ended = run.result
    assert (ended.state, ended.cause, ended.exit_code) == ("stopped", "time_limit", 75), output
    assert "time limit was reached before the end of training" in output
    assert (ended.checkpoint or "").startswith(f"{ended.step:08d}-"), output
    assert 0 < ended.step < 21
    assert cluster.job(run.job_id)["ExitCode"] == "75:0"
    output = run.submit("--set", "slurm.time_limit=10m").wait("COMPLETED", 300)
    states = [attempt.result.read().state for attempt in run.run_dir.attempts()]
    assert states == ["stopped", "done"], output
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.faults
def test_a_cancelled_run_saves_within_killwait_and_never_starts_again(make, cluster):
    run = make("cancelled", **slow()).submit()
    run.wait_for_step(3)
    began = time.monotonic()
    cluster.command("scancel", run.job_id)
    output = run.wait("CANCELLED", 30)
    assert time.monotonic() - began < 10 + 10, "KillWait, and a moment: SLURM looks at times"
    assert (run.result.state, run.result.cause) == ("cancelled", "cancelled"), output
    assert run.result.checkpoint is not None
    assert run.run_dir.attempts()[-1].n == 1
    assert cluster.job(run.job_id)["Restarts"] == "0"
    assert run.left_on_nodes() == {}


@pytest.mark.faults
def test_an_elastic_run_takes_the_nodes_it_gets_and_once_stopped_its_job_trains_nothing(make, cluster):
    other = cluster.sbatch("--nodelist=node3", "--exclusive", wrap="sleep 600")
    cluster.wait_for_state(other, ["RUNNING"])
    elastic = {"workers": [1, 3], "nodes": [1, 3]}
    train = {"epochs": 9, "global_batch_size": 6, "log_every": 1}
    run = make("elastic", **{**slow(), "train": train}, resources=elastic).submit()
    run.wait_for_step(3)
    run.command("stop", str(run.job_file), code=0)
    assert (run.result.state, run.result.cause) == ("stopped", "user")
    assert run.result.world_size == 2
    cluster.wait_for_state(run.job_id, ["FAILED", "CANCELLED", "COMPLETED"])
    cluster.command("scontrol", "requeue", run.job_id)
    output = run.wait("COMPLETED")
    assert "was stopped by its user" in output
    assert len(run.run_dir.attempts()) == 1


@pytest.mark.faults
@pytest.mark.nightly  # whole/test_limits.py has the count, and the test above a restart that is refused
def test_requeues_without_progress_come_to_an_end(make, cluster):
    run = make(
        "stuck", **{**slow(), "checkpoint": {"every": {"steps": 1000}}}, failures={"attempts": 2}
    ).submit()
    for n in (1, 2):
        run.wait_for_attempt(n)
        cluster.command("scontrol", "requeue", run.job_id)
    output = run.wait("FAILED")
    assert "2 attempts in a row ended without a new committed step" in output
    assert len(run.run_dir.attempts()) == 2
    assert cluster.job(run.job_id)["ExitCode"] == "1:0"


def test_gpus_that_torch_cannot_use_are_refused(make, cluster):
    """SLURM assigns device nodes without a device. The job has one node: its Ray listens on the loopback
    address."""
    one = {"workers": 1, "nodes": 1, "gpus_per_worker": 1}
    run = make("gpus", **FAULTY, resources=one).submit()
    output = run.wait("FAILED")
    assert cluster.job(run.job_id)["ExitCode"] == "3:0", output
    assert "torch can use 0" in output
    assert "Traceback" not in output
    assert (run.result.state, run.result.cause) == ("failed", "cluster")
