"""The image at work: it trains, it is stopped, a Ray cluster of it is spoken to, and its health is told."""

import json
import os
import shutil

import pytest

from clusters.containers import RESTRICTED, ROOT, container, podman, told
from support.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]


@pytest.fixture
def storage(tmp_path):
    """A folder of this machine for the runs, as a cluster's file system would be: the user's own."""
    folder = tmp_path / "storage"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    return folder


def at_work(storage):
    """Restricted, without a network, the examples beside it, and nowhere to write but in the storage."""
    mounts = [f"--volume={ROOT}/examples:/work/examples:ro", f"--volume={storage}:/storage"]
    return (*RESTRICTED, "--network=none", *mounts)


DIGITS = ("clustertrain", "run", "examples/digits/job.yaml", "--set", "storage=/storage")


def assert_trained(file, output):
    result = json.loads(file.read_text())
    assert (result["state"], result["world_size"]) == ("done", 2), output
    assert result["metrics"]["accuracy"] >= 0.97
    assert file.stat().st_uid == 1000


@pytest.mark.nightly  # in CI: slurm/test_training.py preempts a run
def test_a_container_that_is_stopped_saves_and_the_next_one_goes_on(image, storage):
    with container(image, *DIGITS, options=at_work(storage)) as name:
        metrics = storage / "digits/g1/attempts/1/metrics-0.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, 240)
        podman("stop", "--time=60", name)
        code = podman("wait", name).stdout.strip()
        output = told(podman("logs", name))
    assert code == "75", output
    stopped = json.loads((storage / "digits/g1/attempts/1/result.json").read_text())
    assert (stopped["state"], stopped["step"] > 0) == ("stopped", True), output
    done = podman("run", "--rm", *at_work(storage), image, *DIGITS, timeout_s=280)
    assert f"step {stopped['step']}" in told(done)
    assert_trained(storage / "digits/g1/attempts/2/result.json", told(done))


def healthy(name):
    return podman("healthcheck", "run", name, check=False).returncode == 0


def test_a_container_without_ray_is_healthy(image):
    with container(image, "sleep", "120") as name:
        assert healthy(name)


HEAD = "ulimit -n 65536 2>/dev/null; ray start --head --dashboard-host=0.0.0.0 --block --num-cpus=1"


def test_a_ray_cluster_of_it_takes_jobs_and_is_healthy_until_its_gcs_hangs(image):
    """As KubeRay starts it: a shell in between, the dashboard, jobs over HTTP, and its probes' question."""
    options = (*RESTRICTED, "--network=none")
    with container(image, "bash", "-c", "--", HEAD, options=options) as name:
        wait_until(lambda: podman("exec", name, "ray", "health-check", check=False).returncode == 0, 120)
        wait_until(lambda: "success" in told(ask(name)), 240)
        wait_until(lambda: healthy(name), 240)
        job = ("ray", "job", "submit", "--address=http://127.0.0.1:8265", "--", "echo", "heard")
        submitted = podman("exec", name, *job)
        assert "heard" in submitted.stdout
        assert "succeeded" in submitted.stdout
        podman("exec", name, "python", "-c", STOP_GCS)
        wait_until(lambda: not healthy(name), 240)


STOP_GCS = """
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if (process / "cmdline").read_bytes().split(b"\\0")[0].endswith(b"/gcs_server"):
        os.kill(int(process.name), signal.SIGSTOP)
"""


def ask(name):
    url = "http://127.0.0.1:52365/api/healthz"
    script = f"import urllib.request as u; print(u.urlopen('{url}').read().decode())"
    return podman("exec", name, "python", "-c", script, check=False)


def test_a_user_with_any_number_can_train_in_it(image, tmp_path):
    """Some clusters choose the number of the user."""
    shutil.copytree(ROOT / "examples/digits", tmp_path / "digits")
    os.chown(tmp_path, 54321, 0)
    options = (*RESTRICTED, "--network=none", "--user=54321:0", f"--volume={tmp_path}:/storage")
    command = ("clustertrain", "run", "/storage/digits/job.yaml", "--set", "storage=/storage/runs")
    done = podman(
        *("run", "--rm", *options, image, *command, "--set", "train.epochs=1"), check=False, timeout_s=280
    )
    assert done.returncode == 0, told(done)
