"""What goes up from a worker's pod whose storage is on S3, where no cluster is needed."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

from clustertrain.job.file import dump_job
from clustertrain.launchers.kubernetes.in_pod import pre_stop as pod_leaving
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from clustertrain.run_files.streams.streams import Tail

pytestmark = pytest.mark.slow

HOST = "a-worker-1"


@pytest.fixture
def attempt(make_job, moto_s3, tmp_path, monkeypatch):
    location = moto_s3.location("runs")
    storage = {"uri": location.uri, "endpoint": location.endpoint, "region": location.region}
    job = make_job(name="a", storage=storage, kubernetes={"ttl": "1s"})
    (tmp_path / "inside.yaml").write_text(dump_job(job))
    monkeypatch.setenv("CLUSTERTRAIN_JOB", str(tmp_path / "inside.yaml"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "pod"))
    return claim_attempt(RunDir.newest(location, "a").fresh(), world_size=1)


@contextlib.contextmanager
def sender():
    """Killed at the end, as with its container."""
    with subprocess.Popen(
        [sys.executable, "-m", "clustertrain.launchers.kubernetes.in_pod.post_start"], env=os.environ
    ) as process:
        yield
        assert process.poll() is None
        process.kill()


def write(attempt, text):
    log = attempt.rank_log(HOST, 1)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(text)


def wait_for(attempt, text, monkeypatch, tmp_path):
    """Until another machine reads this of the rank's log."""
    ends = time.monotonic() + 60
    while (read := read_elsewhere(attempt, monkeypatch, tmp_path)) != text:
        assert time.monotonic() < ends, read
        time.sleep(0.1)


def read_elsewhere(attempt, monkeypatch, tmp_path):
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
        return b"".join(Tail(attempt.run, f"{attempt.key}/logs/{HOST}/rank-1.log").new()).decode()


def test_what_ranks_print_goes_up_and_a_container_that_follows_goes_on(attempt, monkeypatch, tmp_path):
    with sender():
        write(attempt, "one\n")
        wait_for(attempt, "one\n", monkeypatch, tmp_path)
    write(attempt, "two\n")
    with sender():
        wait_for(attempt, "one\ntwo\n", monkeypatch, tmp_path)


def test_a_worker_that_leaves_sends_its_last_lines(attempt, monkeypatch, tmp_path):
    write(attempt, "one\n")
    write_result(attempt, Result("done", "finished", 0))
    assert pod_leaving.main("head") == 0
    assert read_elsewhere(attempt, monkeypatch, tmp_path) == ""
    assert pod_leaving.main("worker") == 0
    write(attempt, "two\n")  # it may train on until its grace is over
    assert pod_leaving.main("worker") == 0
    assert read_elsewhere(attempt, monkeypatch, tmp_path) == "one\ntwo\n"
