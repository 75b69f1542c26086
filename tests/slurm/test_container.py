"""A run in podman's containers: what it computes and leaves, preempted and not, and without its image."""

import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from clusters.images import podman_site, why_not
from clusters.slurm import SlurmCluster
from slurm.trained import FAULTY, Submitted, preempt, slow
from whole_run import same_weights

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def engine(_possible, tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    return podman_site(tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="module")
def cluster(engine, tmp_path_factory):
    """One of their own: podman keeps a store on each node."""
    with SlurmCluster(shared=[tmp_path_factory.getbasetemp()]) as made:
        yield made


@pytest.fixture
def has_infiniband():
    """A device in the folder of InfiniBand's, which all nodes of this machine have; False if it has its own
    folder or this user may not create one."""
    folder = Path("/dev/infiniband")
    try:
        folder.mkdir()
    except OSError:
        yield (folder / "uverbs0").is_char_device()
        return
    try:
        os.mknod(folder / "uverbs0", 0o666 | stat.S_IFCHR, Path("/dev/null").stat().st_rdev)
        yield True
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def make(cluster, engine, tmp_path, monkeypatch):
    """Makes runs whose agents, and so all of Ray and the training, are in containers."""
    for name, value in engine.variables.items():
        monkeypatch.setenv(name, value)

    def make_run(name, image=engine.image, **sections):
        slurm = {
            "container": "podman",
            "mounts": list(engine.mounts),
            "python": engine.python,
            "environment": list(engine.variables),
            **sections.pop("slurm", {}),
        }
        return Submitted(cluster, tmp_path, name, image=image, **sections, slurm=slurm)

    return make_run


@pytest.mark.faults
def test_a_preempted_run_saves_goes_back_and_ends_the_same(make, cluster, uninterrupted, has_infiniband):
    """The agent in the container receives the signal; the batch shell outside queries SLURM and requeues."""
    setup = ["export NCCL_IB_HCA=mlx5_0 UCX_TLS=rc"]  # as a module of the site does
    run = make("preempted", **slow(), slurm={"partition": "low", "setup": setup}).submit()
    run.wait_for_step(5)
    assert len(agents(run)) == 2
    for root in agents(run):
        environment = (root.parent / "environ").read_bytes().split(b"\0")
        assert {b"NCCL_IB_HCA=mlx5_0", b"UCX_TLS=rc", b"NVIDIA_VISIBLE_DEVICES=void"} <= {*environment}
        assert (root / "dev/infiniband/uverbs0").is_char_device() == has_infiniband
    assert not any((root / "usr/bin/scontrol").exists() for root in agents(run))
    preempt(run)
    assert (run.result.step, run.result.world_size) == (21, 2)
    run.wait_for_nothing_left(within_s=15)  # podman tidies up behind the job's back
    assert {containers_on(cluster, node) for node in cluster.nodes} == {""}
    assert same_weights(run.weights(), uninterrupted(2))


def test_an_image_that_is_not_there_is_told_in_three_lines(make, cluster):
    run = make("imageless", image="localhost/not-there:1", **FAULTY)
    done = run.command("submit", "--to", "slurm", "--wait", str(run.job_file))
    run.job_id = run.run_dir.submissions()[0].job_id
    lines = run.output.splitlines()
    assert len(lines) == 3, run.output
    assert re.match(r"node\d: Error: .*localhost/not-there:1", lines[0])
    assert lines[1].startswith("error: image is localhost/not-there:1, and not all nodes of the job have it")
    assert lines[2].startswith("Run podman pull localhost/not-there:1 on each node")
    assert cluster.job(run.job_id)["ExitCode"] == "4:0"
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"{run.folder}/imageless-{run.job_id}.out" in done.stdout
    assert run.left_on_nodes() == {}


def containers_on(cluster, node):
    """The ids of those that podman knows, running or not."""
    return cluster.run_on(node, ["podman", "ps", "--all", "--quiet"]).stdout


def agents(run):
    """What each agent on a node has for its root."""
    found = [process for node in run.cluster.nodes for process in run.cluster.processes_on(node)]
    return [
        Path(f"/proc/{pid}/root")
        for pid, argv in found
        if argv[1:3] == ["-m", "clustertrain.launchers.slurm.agent"]
    ]
