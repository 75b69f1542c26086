"""What a pod of a RayJob does beside training, where no cluster is needed; tests/kubernetes has the rest."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from clustertrain.errors import ClusterError
from clustertrain.job.file import dump_job
from clustertrain.launchers.kubernetes.in_pod import entrypoint as pod
from clustertrain.launchers.kubernetes.in_pod import pre_stop as pod_leaving
from clustertrain.launchers.kubernetes.in_pod import unpack_code as pod_code
from clustertrain.node.version import __version__
from clustertrain.run_files.admission import is_same_start
from clustertrain.run_files.claims import claim_attempt, claim_of
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.requests import StopRequest
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from clustertrain.run_files.snapshot import take_snapshot


@pytest.fixture
def job(make_job, tmp_path, monkeypatch):
    loaded = make_job(name="a", storage="runs", failures={"grace": "3s"})
    (tmp_path / "inside.yaml").write_text(dump_job(loaded))
    for name, value in {
        "JOB": str(tmp_path / "inside.yaml"),
        "NAMESPACE": "team",
        "RAYJOB": "a",
        "POD": "a-head-1",
        "VERSION": __version__,
    }.items():
        monkeypatch.setenv(f"CLUSTERTRAIN_{name}", value)
    return loaded


def write_job(job, **sections):
    """The job file of the pod, with sections changed."""
    changed = yaml.safe_load(dump_job(job)) | sections
    Path(os.environ["CLUSTERTRAIN_JOB"]).write_text(yaml.safe_dump(changed))


def attempt_of(job, **fields):
    return claim_attempt(RunDir.newest(job.storage.location, job.name), world_size=1, **fields)


def claimed_elsewhere(attempt):
    """By the pod of another head."""
    attempt.claim.write(replace(claim_of(attempt), host="a-head-0"))


@pytest.mark.slow
def test_the_heads_pod_asks_for_an_end_and_waits_for_the_result(job):
    attempt = attempt_of(job)
    began = time.monotonic()
    assert pod_leaving.main("head") == 0
    assert 3 <= time.monotonic() - began < 10, "the grace time, when nobody answers"
    assert attempt.stop.read().state == "preempted"


@pytest.mark.slow
def test_a_stop_that_was_asked_for_keeps_its_cause(job):
    attempt = attempt_of(job)
    request = StopRequest("user")
    attempt.stop.write(request)
    pod_leaving.main("head")
    assert attempt.stop.read() == request


@pytest.mark.slow
def test_a_workers_pod_asks_for_a_save_and_not_for_an_end(job):
    attempt = attempt_of(job)
    assert pod_leaving.main("worker") == 0
    assert attempt.save.read().pod == "a-head-1"
    assert attempt.stop.read() is None


@pytest.mark.slow
def test_a_checkpoint_that_is_pruned_is_not_the_one_that_a_workers_pod_asked_for(job, monkeypatch):
    write_job(job, failures={"grace": "5s"})
    attempt_of(job)
    found = iter([["old", "new"]])
    monkeypatch.setattr(pod_leaving, "names", lambda shelf: next(found, ["new"]))
    began = time.monotonic()
    assert pod_leaving.main("worker") == 0
    assert time.monotonic() - began >= 5, "the grace time"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "is_here", "is_kept"),
    [
        (("done", "finished"), True, True),
        (("failed", "error"), True, True),
        (("cancelled", "cancelled"), True, False),
        (("done", "finished"), False, False),  # this pod waited for the next attempt
    ],
)
def test_the_heads_pod_stays_for_the_ttl_after_its_run_has_ended(job, state, is_here, is_kept):
    write_job(job, kubernetes={"ttl": "2s"})
    attempt = attempt_of(job, allocation=pod.this_start())
    if not is_here:
        claimed_elsewhere(attempt)
    write_result(attempt, Result(*state, 0))
    for role, seconds in (("worker", 0), ("head", 2 if is_kept else 0)):
        began = time.monotonic()
        assert pod_leaving.main(role) == 0
        assert seconds <= time.monotonic() - began < seconds + 1.5, role
    assert attempt.stop.read() is attempt.save.read() is None, "of a run that has ended nothing is asked"


@pytest.mark.slow
def test_the_heads_pod_that_stays_goes_when_it_is_told_to(job, monkeypatch, tmp_path):
    """It stays for 10 minutes by default."""
    monkeypatch.setattr(pod_leaving, "LEAVE_FILE", str(tmp_path / "leave"))
    write_result(attempt_of(job, allocation=pod.this_start()), Result("done", "finished", 0))
    hook = threading.Thread(target=pod_leaving.main, args=["head"])
    hook.start()
    hook.join(2)
    assert hook.is_alive()
    (tmp_path / "leave").touch()
    hook.join(5)
    assert not hook.is_alive()


@pytest.mark.slow
def test_a_second_start_follows_the_first_to_its_end(job, capsys):
    attempt = attempt_of(job, allocation=pod.this_start())  # by this process, which lives
    assert is_same_start(attempt, pod.this_start())
    said = []

    class Screen:
        def echo(self, text):
            said.append(text)
            write_result(attempt, Result("done", "finished", 0, step=7))

    result = pod._follow_earlier_start(job, pod.this_start(), Screen())
    assert (result.state, result.step) == ("done", 7)
    assert "attempt 1 is active" in said[0]


def test_another_rayjob_is_not_followed(job, monkeypatch):
    attempt_of(job, allocation=pod.this_start())
    monkeypatch.setenv("CLUSTERTRAIN_NAMESPACE", "another")
    assert pod._follow_earlier_start(job, pod.this_start(), None) is None


def test_a_head_that_is_replaced_does_not_start_over_again(job, monkeypatch):
    """--fresh is among its arguments as well. A RayJob that is submitted again has another Ray cluster."""
    generations = []

    def run_driver(attempt, *arguments, **options):
        generations.append((attempt.run.generation, attempt.n))
        write_result(attempt, result := Result("lost", "vanished", 1))
        return result

    monkeypatch.setattr(pod, "run_driver", run_driver)
    monkeypatch.setattr(pod, "_wait_for_deletion", lambda job: None)
    for cluster in ("a-x1", "a-x1", "a-x2"):
        monkeypatch.setenv("RAY_CLUSTER_NAME", cluster)
        pod.main(["--fresh"])
    assert generations == [(1, 1), (1, 2), (2, 1)]


def test_an_image_of_another_version_is_refused(job, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERTRAIN_VERSION", "9.9.9")
    assert pod.main([]) == ClusterError.exit_code
    stored = capsys.readouterr().err
    assert f"The image has clustertrain {__version__}, and the RayJob was rendered for 9.9.9" in stored


def test_code_is_unpacked_and_again_where_it_was_before(job, tmp_path):
    archive = tmp_path / "code.tar.gz"
    archive.write_bytes(take_snapshot(job).code)
    (tmp_path / "work").mkdir()  # a volume of the pod
    for _ in range(2):
        assert pod_code.main(str(archive), str(tmp_path / "work" / "code")) == 0
        assert (tmp_path / "work" / "code" / "m.py").read_text() == "x = 1\n"


def test_an_archive_that_is_damaged_is_told(tmp_path, capsys):
    (tmp_path / "code.tar.gz").write_bytes(b"no archive")
    assert pod_code.main(str(tmp_path / "code.tar.gz"), str(tmp_path / "code")) == 4
    assert capsys.readouterr().err.startswith("error: ")
