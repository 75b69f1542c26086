"""The cluster of the other tests: its nodes are nodes, their processes are seen, and nothing of it stays."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusters.slurm import CHECKOUT, NOBODY
from commands import ran
from waiting import wait_until

WHERE = """
import json, os, pathlib, socket, sys
print(json.dumps({
    "host": socket.gethostname(),
    "address": socket.gethostbyname(socket.gethostname()),
    "tmp": os.listdir("/tmp"), "shm": os.listdir("/dev/shm"),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "python": sys.prefix,
}))
"""


def test_a_job_runs_on_two_nodes_that_share_the_storage_and_nothing_else(cluster, tmp_path):
    (tmp_path / "where.py").write_text(WHERE)
    mark = Path("/dev/shm") / f"mark-{os.getpid()}"
    mark.touch()
    try:
        job = cluster.sbatch("--nodes=2", "--chdir=/", wrap=f"srun {sys.executable} {tmp_path}/where.py")
        cluster.wait_for_state(job, {"COMPLETED"})
    finally:
        mark.unlink()
    told = [json.loads(line) for line in cluster.output(job).splitlines()]
    one, two = sorted(told, key=lambda node: node["host"])
    assert (one["host"], two["host"]) == ("node1", "node2")
    assert (one["address"], two["address"]) == (cluster.address("node1"), cluster.address("node2"))
    assert one["python"] == two["python"] == sys.prefix
    assert mark.name not in one["shm"] + two["shm"]
    assert set(one["tmp"]) < {entry.name for entry in Path("/tmp").iterdir()}
    assert one["processes"] < 20
    assert cluster.run_on("node3", ["ls", str(CHECKOUT / "pyproject.toml")]).stdout


def test_the_processes_of_a_node_are_seen(cluster):
    argv = [*cluster.enter("node1", uid=NOBODY), sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        ((pid, found),) = cluster.processes_on("node1")
        assert found[1:] == argv[-2:]
        assert Path(f"/proc/{pid}").stat().st_uid == NOBODY
        assert cluster.processes_on("node2") == []
        process.stdin.close()
    assert cluster.processes_on("node1") == []


@pytest.mark.usefixtures("_possible")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, None], ids=["killed", "interrupted", "down"])
def test_a_test_process_that_ends_leaves_nothing(end):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from clusters.slurm import SlurmCluster\n"
        "cluster = SlurmCluster(nodes=2)\n"
        "cluster.up()\n"
        "cluster.sbatch('--nodes=2', wrap='srun sleep 600')\n"
        "print(cluster.folder, flush=True)\n"
        "input()\n"
        "cluster.down()\n"
    )
    argv = [sys.executable, "-c", code, str(CHECKOUT / "tests")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(argv, **pipes) as process:
        folder = Path(process.stdout.readline().decode().strip())
        assert len(_traces(folder)) > 5
        if end is None:
            process.communicate(b"\n")
            assert _traces(folder) == []
        else:
            process.send_signal(end)
    wait_until(lambda: _traces(folder) == [], 240)


def _traces(folder: Path) -> list[str]:
    """What there is on this machine of the cluster with this folder."""
    found = [str(folder)] if folder.exists() else []
    links = ran(["ip", "-brief", "link"], code=0).stdout
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
