"""The cluster that the other tests stand on: its nodes are nodes, fail as nodes do, and leave nothing.

What another test would fail without is nightly: CI sees it there.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusters.slurm import CHECKOUT, NOBODY, SlurmCluster
from waiting import wait_until

WHERE = """
import json, os, pathlib, socket, sys
print(json.dumps({
    "host": socket.gethostname(),
    "address": socket.gethostbyname(socket.gethostname()),
    "tmp": os.listdir("/tmp"), "shm": os.listdir("/dev/shm"),
    "user": os.getuid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "python": sys.prefix,
}))
"""


def told(cluster: SlurmCluster, job_id: str) -> list[dict]:
    """What each process that ran WHERE printed, by host."""
    cluster.wait_for_state(job_id, {"COMPLETED"})
    lines = cluster.output(job_id).splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda line: line["host"])


@pytest.fixture
def where(tmp_path: Path) -> str:
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    return f"{sys.executable} {script}"


def test_a_job_runs_on_two_nodes_that_share_the_storage_and_nothing_else(cluster, where):
    mark = Path("/dev/shm") / f"mark-{os.getpid()}"
    mark.touch()
    try:
        one, two = told(cluster, cluster.sbatch("--nodes=2", "--chdir=/", wrap=f"srun {where}"))
    finally:
        mark.unlink()
    assert (one["host"], two["host"]) == ("node1", "node2")
    assert (one["address"], two["address"]) == (cluster.address("node1"), cluster.address("node2"))
    assert one["python"] == two["python"] == sys.prefix
    assert mark.name not in one["shm"] + two["shm"]
    assert set(one["tmp"]) < {entry.name for entry in Path("/tmp").iterdir()}
    assert one["processes"] < 20
    assert cluster.run_on("node3", ["ls", str(CHECKOUT / "pyproject.toml")]).stdout


@pytest.mark.nightly  # test_security.py counts what each node has there
def test_a_node_has_its_tmp_for_itself(cluster):
    cluster.run_on("node1", ["touch", "/tmp/mark", "/dev/shm/mark"])
    try:
        assert cluster.run_on("node2", ["ls", "/tmp/mark", "/dev/shm/mark"], check=False).returncode == 2
        assert not Path("/tmp/mark").exists()
    finally:
        cluster.run_on("node1", ["rm", "/tmp/mark", "/dev/shm/mark"])


@pytest.mark.nightly  # test_gpus_that_torch_cannot_use_are_refused
def test_jobs_on_one_node_get_a_gpu_each(cluster, where):
    jobs = [cluster.sbatch("--nodelist=node2", "--gres=gpu:1", wrap=f"{where}; sleep 600") for _ in range(2)]
    for job in jobs:
        wait_until(lambda job=job: cluster.output(job), 240)
    waiting = cluster.sbatch("--nodelist=node2", "--gres=gpu:1", wrap="true")
    reason = cluster.wait_for_state(waiting, {"PENDING"})["Reason"]
    cluster.command("scancel", *jobs)
    cluster.wait_for_state(waiting, {"COMPLETED"})
    assert [json.loads(cluster.output(job).splitlines()[0])["gpus"] for job in jobs] == ["0", "1"]
    assert reason in {"Resources", "None", "Priority"}


def test_another_user(cluster, where):
    job = cluster.sbatch(uid=NOBODY, wrap="id -u")
    cluster.wait_for_state(job, {"COMPLETED"})
    assert cluster.output(job) == f"{NOBODY}\n"
    assert cluster.run_on("node1", ["id", "-u"], uid=NOBODY).stdout == f"{NOBODY}\n"
    assert "nobody" in cluster.job(job)["UserId"]


@pytest.mark.nightly  # test_a_lost_node_is_the_cause crashes one, and test_bad_nodes.py loses one in training
def test_a_job_outlives_a_node(cluster):
    """SLURM finds that the node is gone, and runs the job again on the others."""
    job = cluster.sbatch(
        "--nodes=2", "--requeue", "--open-mode=truncate", wrap="srun sh -c 'echo up; sleep 600'"
    )
    first = cluster.wait_for_state(job, {"RUNNING"})
    wait_until(lambda: cluster.output(job) == "up\n" * 2, 240)
    lost = "node2" if first["BatchHost"] == "node1" else "node1"
    cluster.crash(lost)
    cluster.wait_for_state(job, {"PENDING"})
    again = cluster.wait_for_state(job, {"RUNNING"})
    assert again["Restarts"] == "1"
    assert lost not in cluster.command("squeue", "--noheader", f"--jobs={job}", "--format=%N").stdout
    cluster.command("scancel", job)
    cluster.boot(lost)
    assert cluster.processes_on(lost) == []
    assert cluster.run_on(lost, ["hostname"]).stdout == f"{lost}\n"


@pytest.mark.nightly  # test_what_a_cut_off_node_goes_on_to_write_is_never_used
def test_a_cut_node_runs_on_alone(cluster, tmp_path):
    """Its job fails, for SLURM; its process lives and still writes to the storage that it shares."""
    beats = tmp_path / "beats"
    job = cluster.sbatch(
        "--no-requeue", "--nodelist=node3", wrap=f"while date +%N > {beats}; do sleep 0.1; done"
    )
    cluster.wait_for_state(job, {"RUNNING"})
    cluster.cut("node3")
    cluster.wait_for_state(job, {"NODE_FAIL"})
    seen = beats.read_text()
    wait_until(lambda: beats.read_text() not in ("", seen), 240)
    cluster.mend("node3")
    cluster.wait_for_nodes(["node3"])
    wait_until(lambda: cluster.processes_on("node3") == [], 240)


@pytest.mark.nightly  # test_a_node_that_sees_another_storage_is_named
def test_one_node_may_see_another_file_system(cluster, tmp_path):
    (tmp_path / "file").touch()
    cluster.without_share("node2", tmp_path)
    seen = {node: cluster.run_on(node, ["ls", str(tmp_path)]).stdout for node in cluster.nodes}
    assert seen == {"node1": "file\n", "node2": "", "node3": "file\n"}
    cluster.share("node2", tmp_path)
    assert cluster.run_on("node2", ["ls", str(tmp_path)]).stdout == "file\n"


@pytest.mark.nightly  # test_a_controller_that_is_away_stops_no_training_and_a_signal_puts_the_job_back
def test_a_job_lives_without_the_controller(cluster):
    job = cluster.sbatch(wrap="sleep 600")
    host = cluster.wait_for_state(job, {"RUNNING"})["BatchHost"]
    cluster.stop_controller()
    refused = cluster.command("squeue", check=False)
    assert (refused.returncode, "Unable to contact slurm controller" in refused.stderr) == (1, True)
    assert ["sleep", "600"] in [argv for _, argv in cluster.processes_on(host)]
    cluster.start_controller()
    assert cluster.job(job)["JobState"] == "RUNNING"


def test_ports_and_processes_of_a_node_are_seen(cluster):
    code = "import socket; s = socket.create_server(('127.0.0.1', 7001)); print('up', flush=True); input()"
    argv = [*cluster.enter("node1", uid=NOBODY), sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        assert cluster.listening_ports("node1") == {7001}
        assert cluster.listening_ports("node2") == set()
        ((pid, found),) = cluster.processes_on("node1")
        assert found[1:] == ["-c", code]
        assert Path(f"/proc/{pid}").stat().st_uid == NOBODY
        process.stdin.close()
    assert cluster.processes_on("node1") == []


def test_what_a_test_did_is_healed(cluster, tmp_path):
    stubborn = f"trap '' TERM; (trap '' TERM; setsid sleep 600 &) ; echo > {tmp_path}/up; sleep 600"
    cluster.sbatch("--nodes=3", "--exclusive", "--requeue", wrap=f"srun bash -c {stubborn!r}")
    cluster.sbatch("--nodes=3", wrap="true")
    wait_until((tmp_path / "up").exists, 240)
    cluster.without_share("node2", tmp_path)
    cluster.cut("node1")
    cluster.crash("node3")
    cluster.command("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=test")
    cluster.stop_controller()
    cluster.heal()
    assert cluster.command("squeue", "--noheader").stdout == ""
    assert [cluster.processes_on(node) for node in cluster.nodes] == [[], [], []]
    job = cluster.sbatch("--nodes=3", wrap=f"srun ls {tmp_path}")
    cluster.wait_for_state(job, {"COMPLETED"})
    assert cluster.output(job) == "up\n" * 3


def test_clusters_stand_side_by_side_and_leave_nothing(cluster, fresh_cluster, where):
    other = fresh_cluster(nodes=2, EnforcePartLimits="NO", MinJobAge=2)
    assert other.folder != cluster.folder
    assert other.address("node1") != cluster.address("node1")
    waits_for_ever = other.sbatch("--nodes=9", wrap="true")
    assert other.wait_for_state(waits_for_ever, {"PENDING"})["Reason"] in {"None", "PartitionConfig"}
    refused = cluster.command("sbatch", "--nodes=9", "--wrap=true", check=False)
    assert (refused.returncode, "Node count specification invalid" in refused.stderr) == (1, True)
    one, two = (told(each, each.sbatch(wrap=where))[0] for each in (cluster, other))
    assert one["host"] == two["host"] == "node1"
    assert (one["address"], two["address"]) == (cluster.address("node1"), other.address("node1"))

    other.sbatch(wrap="sleep 600")
    other.down()
    assert _traces(other.folder) == []
    assert cluster.run_on("node1", ["hostname"]).stdout == "node1\n"


@pytest.mark.usefixtures("_possible")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_test_process_that_ends_leaves_nothing(end):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from clusters.slurm import SlurmCluster\n"
        "cluster = SlurmCluster(nodes=2)\n"
        "cluster.up()\n"
        "cluster.sbatch('--nodes=2', wrap='srun sleep 600')\n"
        "print(cluster.folder, flush=True)\n"
        "input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(CHECKOUT / "tests")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        folder = Path(process.stdout.readline().decode().strip())
        assert len(_traces(folder)) > 5
        process.send_signal(end)
    wait_until(lambda: _traces(folder) == [], 240)


def _traces(folder: Path) -> list[str]:
    """What there is on this machine of the cluster with this folder."""
    found = [str(folder)] if folder.exists() else []
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    found += [line for line in links.splitlines() if f"{folder.name}@" in line]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{folder}/" in line]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"{folder}/".encode() in text:
            found.append(text[:80].decode())
    return found
