"""What `status`, `ls`, `logs` and `stop` make of real jobs. The run folders are made by hand, and a few lines
stand in for the agent: what is watched here is SLURM, not training."""

import re
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import ClusterError, JobError
from clustertrain.launchers.scheduler import stop
from clustertrain.launchers.scheduler.on_rank import exec_on_rank
from clustertrain.launchers.scheduler.status import Registered
from clustertrain.launchers.scheduler.stop import stop_run
from clustertrain.launchers.slurm import queue as slurm_queue
from clustertrain.launchers.slurm.queue import query_squeue
from clustertrain.launchers.slurm.scheduler import SCHEDULER
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from support.run_status import status_of
from support.sample_records import sample_submission
from support.waiting import wait_until

SLURM = Registered("slurm", SCHEDULER)
AGENT = """
import os, socket, sys, time
from clustertrain.run_files.claims import Heartbeat, claim_attempt
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.result import write_result
from clustertrain.run_files.folder.run_dir import RunDir

storage, name, obeys = sys.argv[1:]
attempt = claim_attempt(RunDir.newest(storage, name), launcher="slurm", allocation=SchedulerStart(
    "slurm", os.environ["SLURM_JOB_ID"], {"cluster": os.environ["SLURM_CLUSTER_NAME"]},
    os.environ.get("SLURM_RESTART_COUNT", "0"), (os.environ["SLURMD_NODENAME"],)))
with Heartbeat(attempt):
    ranks = [{"rank": 0, "host": socket.gethostname(), "pid": os.getpid(), "gpus": []}]
    EventLog(attempt.events).write("group_started", world_size=1, restart=0, ranks=ranks)
    while obeys == "deaf" or attempt.stop.read() is None:
        time.sleep(0.1)
    write_result(attempt, Result("stopped", "user", 75, step=7))
"""


class Runs:
    """Runs of one storage, each submitted as `clustertrain submit` would."""

    def __init__(self, cluster, storage):
        self.cluster = cluster
        self.storage = storage

    def run(self, name="digits"):
        return RunDir.newest(str(self.storage), name)

    def submit(self, *options, wrap="sleep 600", name="digits", cluster=None):
        """Returns the job's id."""
        job_id = self.cluster.sbatch(*options, wrap=wrap)
        place = {"cluster": cluster} if cluster else {}
        job = sample_submission(job_id, place=place, time=time.time(), output=f"/a/{name}.out")
        self.run(name).submission("slurm", job_id).write(job)
        return job_id

    def start(self, *options, agent="obeys"):
        """With an agent that has begun an attempt; returns the job's id."""
        job_id = self.submit(*options, wrap=self.agent(agent))
        self.wait_for(lambda status: status.state == "running")
        return job_id

    def agent(self, manner="obeys"):
        program = self.storage / "agent.py"
        program.write_text(AGENT)
        return f"{sys.executable} {program} {self.storage} digits {manner}"

    def wait_for(self, wanted, within_s=90, name="digits"):
        def found():
            status = status_of(self.run(name))
            return status if wanted(status) else None

        return wait_until(found, within_s, lambda: status_of(self.run(name)), 0.3)

    def cli(self, command, *options, name="digits"):
        result = CliRunner().invoke(main, [command, str(self.storage / name), *options])
        assert result.exit_code == 0, result.output
        return result.output


def runs_on(cluster, folder, monkeypatch):
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.environment[name])
    storage = folder / "runs"
    storage.mkdir()
    return Runs(cluster, storage)


@pytest.fixture
def runs(cluster, tmp_path, monkeypatch):
    return runs_on(cluster, tmp_path, monkeypatch)


def test_a_job_that_waits_says_why_and_is_taken_out_of_the_queue(runs, cluster):
    job_id = runs.submit("--begin=now+1hour")
    status = status_of(runs.run())
    assert (status.state, status.standing.cause, status.note) == ("queued", "scheduler", None)
    shown = runs.cli("status")
    assert f"SLURM {job_id}: PENDING (BeginTime)" in shown
    assert re.search(r"^starts +about (\S+ )?\d\d:\d\d$", shown, re.MULTILINE)
    assert runs.cli("logs").startswith("queued (scheduler): PENDING (BeginTime")
    assert runs.cli("stop") == f"SLURM job {job_id} was cancelled in the queue\n"
    assert cluster.job(job_id)["JobState"] == "CANCELLED"
    status = status_of(runs.run())
    assert (status.state, status.exit_code, status.standing.over) == ("cancelled", 130, True)
    assert runs.run().cancellation("slurm", job_id).read() is not None


def test_a_job_with_nodes_and_no_attempt_waits_and_is_cancelled_by_a_stop(runs, cluster):
    job_id = runs.submit("--nodes=2", "--time=10")
    cluster.wait_for_state(job_id, {"RUNNING"})
    status = status_of(runs.run())
    assert (status.state, status.standing.text) == ("waiting", "started; it has begun no attempt yet")
    assert status.runner == f"SLURM job {job_id} on {status.job.queue.hosts}"
    assert runs.cli("stop") == f"SLURM job {job_id} was cancelled: there was nothing to save yet\n"
    assert status_of(runs.run()).state == "cancelled"


def test_a_run_shows_its_job_and_a_command_runs_beside_its_rank(runs, capfd):
    job_id = runs.start("--nodelist=node2", "--time=10")
    shown = runs.cli("status")
    rows = dict(re.split(" {2,}", line, maxsplit=1) for line in shown.splitlines())
    assert rows["state"] == "running (training)"
    assert rows["job"] == f"SLURM {job_id}: RUNNING"
    assert (rows["nodes"], rows["attempt"]) == ("node2", "1")
    assert re.fullmatch(r"10:00|\d:\d\d", rows["time left"])
    command = ["sh", "-c", 'kill -0 $CLUSTERTRAIN_PID && echo "rank $RANK on $SLURMD_NODENAME"; exit 7']
    assert exec_on_rank(SLURM, runs.run(), 0, command) == 7
    assert "rank 0 on node2" in capfd.readouterr().out
    with pytest.raises(JobError, match="digits has no rank 4: its ranks are 0 to 0"):
        exec_on_rank(SLURM, runs.run(), 4, command)


def test_a_run_that_does_not_stop_in_time_is_cancelled(runs, cluster, monkeypatch):
    monkeypatch.setattr(stop, "BEYOND_GRACE_S", 1.0)
    job_id, said = runs.start(agent="deaf"), []
    stop_run(SLURM, runs.run(), said.append)
    assert said[1:] == ["it has not ended within 1 s", f"SLURM job {job_id} was RUNNING: cancelled"]
    cluster.wait_for_state(job_id, {"CANCELLED"})
    assert runs.wait_for(lambda status: status.standing.over).state == "cancelled"


def test_what_waits_behind_one_that_runs_does_not_go_on_after_a_stop(runs, cluster):
    first = runs.start()
    second = runs.submit(f"--dependency=afterany:{first}")
    shown = runs.cli("status")
    assert "running (training)" in shown
    assert f"SLURM {second}: PENDING (Dependency)" in shown
    said = runs.cli("stop").splitlines()
    assert said[0] == f"SLURM job {second} was cancelled in the queue"
    assert said[1].startswith(f"sent a stop request to SLURM job {first} on node")
    assert said[2:] == ["digits: stopped (user) at step 7"]
    assert cluster.job(second)["JobState"] == "CANCELLED"
    assert cluster.wait_for_state(first, {"COMPLETED", "CANCELLED"})["JobState"] == "COMPLETED"
    assert status_of(runs.run()).exit_code == 75  # as the attempt ended


def test_a_job_that_starts_while_it_is_taken_out_of_the_queue_saves(runs, cluster, monkeypatch):
    job_id, cancel = runs.submit("--hold", wrap=runs.agent()), slurm_queue.cancel

    def cancel_late(job_id, *, only_waiting=False):
        cluster.command("scontrol", "release", job_id)
        runs.wait_for(lambda status: status.state == "running")
        cancel(job_id, only_waiting=only_waiting)

    monkeypatch.setattr(slurm_queue, "cancel", cancel_late)
    assert runs.cli("stop").endswith("\ndigits: stopped (user) at step 7\n")
    assert cluster.wait_for_state(job_id, {"COMPLETED", "CANCELLED"})["JobState"] == "COMPLETED"


def test_a_requeued_job_is_queued_again_and_can_be_taken_out(runs, cluster):
    job_id = runs.start("--requeue", agent="deaf")
    attempt = runs.run().newest_attempt()
    write_result(attempt, Result("preempted", "preempted", 75, step=7))
    cluster.command("scontrol", "requeuehold", job_id)
    status = runs.wait_for(lambda status: status.state == "queued")
    assert status.result is None
    assert status.standing.text.endswith("again after attempt 1")
    shown = runs.cli("status")
    assert "1, which ended as preempted (preempted)" in shown
    assert re.search("^requeued +once$", shown, re.MULTILINE)
    runs.cli("stop")
    assert status_of(runs.run()).state == "cancelled"


def test_a_job_that_scancel_ended_before_its_result_is_cancelled(runs, cluster):
    job_id = runs.start(agent="deaf")
    cluster.command("scancel", job_id)
    status = runs.wait_for(lambda status: status.standing.over)
    assert (status.state, status.exit_code) == ("cancelled", 130)


def test_a_run_whose_node_crashed_is_lost_with_slurms_reason(runs, cluster):
    runs.start("--nodelist=node3", "--no-requeue", agent="deaf")
    cluster.crash("node3")
    status = runs.wait_for(lambda status: status.standing.over, within_s=120)
    assert (status.state, status.standing.cause) == ("lost", "vanished")
    first = runs.cli("status").splitlines()[0]
    assert first.split(maxsplit=1) == ["lost", f"SLURM job {status.job.job_id}: NODE_FAIL (NodeDown)"]
    assert runs.cli("logs").splitlines()[0].startswith("lost (vanished): ")


def test_a_run_is_known_by_its_heartbeat_while_the_controller_is_away(runs, cluster, monkeypatch):
    job_id = runs.start()
    queued = runs.submit("--hold", name="other")
    cluster.stop_controller()
    monkeypatch.setattr(slurm_queue, "ANSWER_S", 1.0)
    shown = runs.cli("status")
    assert "running (training)" in shown
    assert re.search(
        "^note +SLURM does not answer: .+; the heartbeat shows that it is running$", shown, re.MULTILINE
    )
    assert "queued (scheduler)" in runs.cli("status", name="other")
    listed = CliRunner().invoke(main, ["ls", str(runs.storage)]).output.splitlines()
    assert [line.split()[:2] for line in listed[1:3]] == [["digits", "running"], ["other", "queued"]]
    assert listed[3].startswith("note: SLURM does not answer: ")
    with pytest.raises(ClusterError, match="other is queued, and SLURM does not answer"):
        stop_run(SLURM, runs.run("other"), print)
    monkeypatch.setattr(slurm_queue, "ANSWER_S", 30.0)
    cluster.start_controller()
    assert set(query_squeue([job_id, queued])) == {job_id, queued}
    assert status_of(runs.run()).note is None


def test_the_same_id_on_another_cluster_is_another_job(runs, cluster):
    job_id = runs.submit("--hold", cluster="elsewhere")
    status = status_of(runs.run())
    assert status.state == "queued"
    assert status.note.startswith("SLURM's cluster here is ")
    with pytest.raises(ClusterError):
        stop_run(SLURM, runs.run(), print)
    assert cluster.job(job_id)["JobState"] == "PENDING"


def test_ls_asks_squeue_once_for_all_runs(runs, tmp_path, monkeypatch):
    asked = tmp_path / "asked"
    shim = tmp_path / "bin" / "squeue"
    shim.parent.mkdir()
    shim.write_text(
        f'#!/bin/sh\necho asked >> {asked}\nPATH="{runs.cluster.environment["PATH"]}" exec squeue "$@"\n'
    )
    shim.chmod(0o755)
    names = [f"run{n}" for n in range(4)]
    for name in names:
        runs.submit("--hold", name=name)
    monkeypatch.setenv("PATH", f"{shim.parent}:{runs.cluster.environment['PATH']}")
    listed = CliRunner().invoke(main, ["ls", str(runs.storage)]).output.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [[name, "queued", "-"] for name in names]
    assert asked.read_text() == "asked\n"


def test_the_storage_knows_the_end_of_jobs_that_slurm_has_forgotten(fresh_cluster, tmp_path, monkeypatch):
    """SLURM looks for jobs to forget once a minute."""
    runs = runs_on(fresh_cluster(nodes=1, MinJobAge=2), tmp_path, monkeypatch)
    jobs = [runs.submit("--hold", name="taken-out"), runs.submit(wrap="exit 0", name="silent")]
    runs.cli("stop", name="taken-out")
    jobs.append(runs.start())
    runs.cli("stop")
    wait_until(lambda: not query_squeue(jobs), 150, poll_s=1)
    assert status_of(runs.run()).state == "stopped"
    assert status_of(runs.run("taken-out")).state == "cancelled"
    status = status_of(runs.run("silent"))
    assert (status.state, status.note) == ("lost", None)
    assert Path(status.job.sent.output).name == "silent.out"
