"""A cluster of ours ends with whoever uses it, and leaves nothing on this machine.

What ends it is its process 1, whatever else runs there: but for one test, a few of its programs are enough.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusters.kube import KubeCluster, shared_cluster, why_not
from clusters.kube_pods import shell_pod
from commands import ran
from waiting import wait_until

TESTS = Path(__file__).parents[1]
OWN = """
import sys, time
from pathlib import Path
from clusters.kube import shared_cluster
from kubernetes.test_kube_ending import FewPrograms
"""


class FewPrograms(KubeCluster):
    """It has all that is seen of a cluster from outside, and no Kubernetes in it."""

    def _start_node(self):
        for name in ("containerd", "etcd", "apiserver"):
            self.start(name)

    def start_dns(self):
        """Without an API server that answers there is nothing to do."""

    def start_operator(self):
        """As above."""


@pytest.fixture
def possible():
    if reason := why_not():
        pytest.skip(reason)


def traces(folder):
    """What a cluster would be seen by on this machine, beside its processes."""
    rules = ran(["iptables-save"], code=0).stdout
    links = ran(["ip", "-brief", "link"], code=0).stdout
    return {
        "folder": folder.exists(),
        "cgroups": sorted(Path("/sys/fs/cgroup").glob(f"**/{folder.name}")),
        "link": folder.name in links,
        "rules": [line for line in rules.splitlines() if "KUBE" in line or folder.name in line],
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line],
    }


NO_TRACE = {"folder": False, "cgroups": [], "link": False, "rules": [], "mounts": []}


def processes_in(namespace):
    """Commands of the processes in a namespace of processes, named by its number."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "ns" / "pid").stat().st_ino == namespace:
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue  # it has ended
    return found


def process_namespace(folder):
    return Path(f"/proc/{(folder / 'pid').read_text().strip()}/ns/pid").stat().st_ino


@pytest.mark.nightly
def test_two_clusters_do_not_meet_and_nothing_is_left_of_one_that_ends(kube, namespace):
    with KubeCluster() as other:
        assert other.node_address != kube.node_address
        assert not other.get("namespaces", namespace)
        inner = other.make_namespace("inner")
        other.apply(shell_pod("sleeper", "busybox sleep 600"), namespace=inner)
        other.wait_for(lambda: other.phase(inner, "sleeper") == "Running", 240, "it does not run")
        programs = process_namespace(other.folder)
        assert len(processes_in(programs)) > 7
        assert traces(other.folder)["cgroups"]
    assert traces(other.folder) == NO_TRACE
    assert processes_in(programs) == []
    assert kube.get("namespaces", namespace)


def start_elsewhere(script, *arguments):
    """A process that has a cluster, and the folder of that."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWN + script, *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline().strip()
    assert line, "no cluster came up"
    return process, Path(line)


def test_nothing_is_left_when_the_process_that_has_it_is_killed(possible):
    script = "with FewPrograms() as own: print(own.folder, flush=True); time.sleep(600)"
    process, folder = start_elsewhere(script)
    with process:
        programs = process_namespace(folder)
        assert len(processes_in(programs)) > 3
        process.kill()
    wait_until(lambda: not folder.exists(), 30)
    wait_until(lambda: traces(folder) == NO_TRACE, 30)  # the kernel removes links a little later
    assert processes_in(programs) == []


def test_what_is_left_of_a_cluster_whose_process_1_was_killed_goes_with_the_next_that_looks(possible):
    with FewPrograms() as killed:
        process_1 = int((killed.folder / "pid").read_text())
        os.kill(process_1, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{process_1}").exists(), 30)
        assert traces(killed.folder)["cgroups"]
    assert traces(killed.folder) == NO_TRACE


def test_a_shared_cluster_ends_with_the_last_that_uses_it(possible, tmp_path):
    script = (
        "meeting = Path(sys.argv[1])\n"
        "with shared_cluster(meeting, FewPrograms) as ours: print(ours.folder, flush=True); sys.stdin.read()"
    )
    meeting = tmp_path / "meeting"
    with shared_cluster(meeting, FewPrograms) as ours:
        other, folder = start_elsewhere(script, str(meeting))
        assert folder == ours.folder
    with other:
        time.sleep(1)
        ours.inside("true")  # we have left it; it is there
        other.stdin.close()
    wait_until(lambda: not ours.folder.exists(), 30)
    wait_until(lambda: traces(ours.folder) == NO_TRACE, 30)
