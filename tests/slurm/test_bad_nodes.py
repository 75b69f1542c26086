"""Nodes that are not as the job needs them, and nodes that are lost on the way."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from clustertrain.node import version
from clustertrain.run_files.records.result import Result
from slurm.slurm_run import ON_TWO, wait_for_no_process
from support.cluster_jobs import slow
from support.commands import ran
from support.waiting import wait_until
from support.whole_run import FAULTY, same_weights

pytestmark = pytest.mark.timeout(900)


def refused(run, code: int) -> str:
    """What the user reads of a run that could not begin: the last error in the job's output, which is the
    head's; another node may have told its own before."""
    output = run.wait("FAILED")
    assert run.cluster.job(run.job_id)["ExitCode"] == f"{code}:0", output
    assert "Traceback" not in output
    error = re.split(r"^error: ", output, flags=re.MULTILINE)[-1]
    other = r"(srun|slurmstepd\S*|node\d|run|state|step|folder)(:|  )"
    lines = [line for line in error.splitlines() if not re.match(other, line)]
    assert 2 <= len(lines) <= 3, output
    return "\n".join(lines)


# ------------------------------------------------------------------------------------- before training


def test_a_node_that_sees_another_storage_is_named(make, cluster, tmp_path):
    no_retries = {**FAULTY, "failures": {"retries": 0}}
    run = make("apart", **no_retries, slurm={**ON_TWO, "nodes_wait": "1h"})
    (tmp_path / "runs").mkdir()
    cluster.without_share("node2", tmp_path / "runs")
    run.submit()
    said = refused(run, 3)
    assert "node2" in said
    assert str(tmp_path / "runs") in said
    assert "as srun reports: Exited with exit code 4" in said
    assert (run.result.state, run.result.cause) == ("failed", "cluster")


@pytest.mark.faults
@pytest.mark.nightly  # CI has the driver's part: tests/launchers/slurm/test_late_node.py
def test_a_job_goes_back_into_the_queue_for_a_node_that_does_not_start(
    make, cluster, uninterrupted, tmp_path
):
    run = make("late", **slow(0.0), slurm={**ON_TWO, "nodes_wait": "60s"})
    (tmp_path / "runs").mkdir()
    cluster.without_share("node2", tmp_path / "runs")
    run.submit().wait_for_attempt(1)
    wait_until(run.run_dir.attempt(1).result.exists, 240)
    cluster.share("node2", tmp_path / "runs")
    output = run.wait("COMPLETED", 400)
    assert cluster.job(run.job_id)["Restarts"] == "1", output
    first = run.run_dir.attempt(1).result.read()
    assert (first.state, first.cause) == ("lost", "node_fail"), output
    assert "node2" in first.text
    assert "The job goes back into the queue." in first.text
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.parametrize("options", ["", "ro,"], ids=["empty", "read-only"])
def test_a_head_that_cannot_begin_holds_no_other_node(make, cluster, tmp_path, options):
    """The other node would wait for it as long as slurm.nodes_wait."""
    run = make("early", **FAULTY, slurm={**ON_TWO, "nodes_wait": "1h"})
    runs = tmp_path / "runs"
    runs.mkdir()
    cluster.run_on("node1", ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(runs)])
    cluster.run_on("node1", ["mount", "-o", f"{options}remount", str(runs)])
    try:
        said = refused(run.submit(), 4)
    finally:
        cluster.run_on("node1", ["umount", "--lazy", str(runs)])
    assert str(runs) in said
    assert run.run_dir.attempts() == []


def test_nodes_with_different_versions_are_refused(make, cluster, tmp_path):
    run = make("versions", **FAULTY, slurm=ON_TWO)
    installed = Path(version.__file__)
    other = tmp_path / "other.py"
    other.write_text(re.sub(r'__version__ = ".*"', '__version__ = "0.0.7"', installed.read_text()))
    cluster.run_on("node2", ["mount", "--bind", str(other), str(installed)])
    try:
        said = refused(run.submit(), 3)
    finally:
        cluster.run_on("node2", ["umount", "--lazy", str(installed)])
    assert "node2 has clustertrain 0.0.7, and node1 has" in said
    assert (run.result.state, run.result.cause) == ("failed", "cluster")


def test_an_array_of_the_rendered_script_is_refused_with_the_way_to_do_it(make):
    run = make("swept", **FAULTY, resources={"workers": 1, "nodes": 1})
    run.job_id = sbatch(run, run.command("render", "--to", "slurm", str(run.job_file)).stdout, "--array=3")
    said = refused(run, 3)
    assert "element 3 of a job array" in said
    assert f"submit --to slurm {run.job_file} --grid KEY=V1,V2" in said
    assert run.run_dir.attempts() == []


def sbatch(run, script: str, *options: str) -> str:
    """The script by hand, without the kit."""
    argv, environment = ["sbatch", "--parsable", *options], run.cluster.environment
    return ran(argv, code=0, cwd=run.folder, env=environment, input=script).stdout.strip()


def test_a_python_without_ray_on_the_nodes_is_told(make, cluster, tmp_path):
    """It has the kit as `pip install .` leaves it, without [train]."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "light"], check=True)
    (packages,) = (tmp_path / "light" / "lib").glob("python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("ray", "torch")):
            (packages / entry.name).symlink_to(entry)
    python = str(tmp_path / "light" / "bin" / "python")
    run = make("rayless", **FAULTY, slurm={**ON_TWO, "python": python}).submit()
    said = refused(run, 3)
    assert f"{python} on node1 has no torch and no ray" in said
    assert "with its extra train into" in said
    assert (run.result.state, run.result.cause) == ("failed", "cluster")


def test_a_container_without_its_runtime_is_told(make, cluster):
    run = make("boxed", **FAULTY, image="registry.invalid/train:1", slurm={"container": "apptainer"})
    run.job_id = sbatch(run, run.command("render", "--to", "slurm", str(run.job_file)).stdout)
    said = refused(run, 3)
    assert "apptainer" in run.output
    assert "no agent" in said


# ------------------------------------------------------------------------------------- in mid-training


def went_on(run, uninterrupted) -> list[Result]:
    """The job ended well after a restart by SLURM; returns the results of its two attempts."""
    output = run.wait("COMPLETED", 400)
    assert run.cluster.job(run.job_id)["Restarts"] == "1", output
    found = run.run_dir.attempts()
    assert len(found) == 2, output
    assert any(event["kind"] == "resumed" and event["step"] > 0 for event in run.events), output
    assert same_weights(run.weights(), uninterrupted(2))
    return [attempt.result.read() for attempt in found]


def kill(cluster, node: str, program: str) -> None:
    """SIGKILL to the one process on the node whose command line has this in it."""
    (pid,) = [pid for pid, argv in cluster.processes_on(node) if re.search(program, " ".join(argv[:4]))]
    os.kill(pid, signal.SIGKILL)


def assert_the_next_start_collects(run) -> None:
    """What was killed cannot remove its folders; the next start of the same user does."""
    start = "from clustertrain.supervise.private_folder import private_folder, remove\n"
    start += "remove(private_folder())"
    for node in run.cluster.nodes:
        run.cluster.run_on(node, [sys.executable, "-c", start])
    assert run.left_on_nodes() == {}


# In CI: driver/test_ray_watch.py kills the raylet, and test_training.py has a job that goes back.
@pytest.mark.faults
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("node", "program"),
    [("node2", "/raylet/raylet"), ("node1", "/raylet/raylet"), ("node1", "/gcs/gcs_server")],
)
def test_ray_that_dies_on_a_node_costs_a_restart(make, cluster, uninterrupted, node, program):
    run = make("bereft", **slow(0.5), slurm=ON_TWO).submit()
    run.wait_for_step(5)
    kill(cluster, node, program)
    first, _ = went_on(run, uninterrupted)
    assert (first.state, first.cause, first.exit_code) == ("lost", "node_fail", 1), first
    assert f"Ray on {node} ended" in first.text
    killed = rf"Ray's {program.rpartition('/')[2]} \(pid \d+\) was killed by signal 9 \(SIGKILL\)"
    assert re.search(killed, first.text)


@pytest.mark.faults
@pytest.mark.nightly  # CI kills the driver on one machine: tests/whole/test_endings.py
def test_a_killed_driver_costs_a_restart_of_the_workers_and_not_the_job(make, cluster, uninterrupted):
    run = make("driverless", **slow(0.5), slurm=ON_TWO).submit()
    run.wait_for_step(5)
    kill(cluster, "node1", r"python\S* -P -m clustertrain\.driver$")
    output = run.wait("COMPLETED", 400)
    assert cluster.job(run.job_id)["Restarts"] == "0", output
    (attempt,) = run.run_dir.attempts()
    result = attempt.result.read()
    assert (result.state, result.restarts) == ("done", 1), output
    (restarting,) = [event for event in run.events if event["kind"] == "restarting"]
    assert (restarting["with_driver"], restarting["text"]) == (True, "the driver was killed by signal 9")
    assert any(event["kind"] == "resumed" and event["step"] > 0 for event in run.events), output
    assert same_weights(run.weights(), uninterrupted(2))
    run.wait_for_nothing_left(60)


@pytest.mark.faults
def test_a_killed_agent_of_the_head_leaves_nothing_anywhere(make, cluster):
    run = make("headless", **slow(0.5), slurm=ON_TWO).submit()
    run.wait_for_step(3)
    kill(cluster, "node1", r"python\S* -m clustertrain\.launchers\.slurm\.agent ")
    wait_for_no_process(cluster, cluster.nodes, within_s=15)
    run.wait("FAILED", 240)
    said = run.command("status", str(run.job_file)).stdout
    assert re.search(r"^state +(lost|failed)", said, re.MULTILINE), said
    assert_the_next_start_collects(run)


@pytest.mark.faults
# CI has what SLURM says (tests/slurm/test_batch_shell.py) and what follows (tests/launchers/slurm).
@pytest.mark.nightly
@pytest.mark.parametrize("which", [0, 1], ids=["head", "other"])
def test_a_run_outlives_the_crash_of_a_node(make, cluster, uninterrupted, which):
    run = make("crashed", **slow(0.5)).submit()
    run.wait_for_step(5)
    node = run.attempt.rendezvous.read().nodes[which]
    cluster.crash(node)
    first, _ = went_on(run, uninterrupted)
    if which == 1:  # with the head, its agent is gone
        assert (first.state, first.cause) == ("lost", "node_fail")
        assert f"Node {node} was lost: SLURM has it as down* since " in first.text


# tests/checkpoints/test_checkpoint.py has a writer that goes on after it was taken over.
@pytest.mark.nightly
@pytest.mark.faults
def test_what_a_cut_off_node_goes_on_to_write_is_never_used(make, cluster, uninterrupted):
    """Rank 0 lives on behind it and sees the storage: it may try to save when another attempt trains."""
    run = make("cut", **slow(1.0)).submit()
    run.wait_for_step(5)
    (started,) = [event for event in run.events if event["kind"] == "group_started"]
    (alone,) = [rank["host"] for rank in started["ranks"] if rank["rank"] == 0]
    cluster.cut(alone)
    run.wait_for_attempt(2)
    claimed_at = Path(run.attempt.claim.uri).stat().st_mtime
    assert alone not in run.attempt.claim.read().allocation.nodes
    went_on(run, uninterrupted)
    manifests = {path.parent.name: path.stat().st_mtime for path in run.checkpoints.glob("*/MANIFEST.json")}
    assert [name for name, at in manifests.items() if "-1." in name and at > claimed_at] == []
    cluster.mend(alone)
    # A batch shell behind the cut is ended when SLURM next asks its node what runs there, which is with every
    # 20th ping, 66 s here, and KillWait, 10 s.
    wait_for_no_process(cluster, cluster.nodes, within_s=150)
    assert_the_next_start_collects(run)
