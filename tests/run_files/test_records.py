"""The records of a run: what is written is read back, and what is not such a record is named."""

import json

import pytest

from clustertrain.errors import EXIT_STORAGE, StorageError
from clustertrain.job.identity import Change
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.claim import Beat, ResumePoint
from clustertrain.run_files.records.provenance import JobChanges
from clustertrain.run_files.records.requests import ResizeRequest, SaveRequest, StopRequest
from clustertrain.run_files.records.result import BestCheckpoint, Hang, Outcome, Result, Returned
from clustertrain.run_files.records.scheduler import Arrival, Cancellation, Rendezvous, SchedulerStart
from clustertrain.storage import record_file
from clustertrain.storage.record_file import decoded, encoded
from support.sample_records import FAR, sample_claim, sample_failure, sample_restart_claim, sample_submission

START = SchedulerStart("slurm", "12", {"cluster": "sim"}, "1", ("n1", "n2"))
RENDEZVOUS = Rendezvous("7", "0", "10.0.0.1", 20100, "/tmp/ct-1/token", ("n1", "n2"))


def files(run):
    """Every file of a run that holds a record, with one such record."""
    attempt, restart = run.attempt(1), run.attempt(1).restart(0)
    return [
        (attempt.claim, sample_claim(allocation=START, files="f" * 64)),
        (attempt.claim, sample_claim()),
        (attempt.changes, JobChanges(7, "00000007-1.0", (Change("args.lr", "0.1", "0.01"),))),
        (attempt.heartbeat, Beat(FAR.host, FAR.pid, FAR.pid_started_ticks, 1.5, 3)),
        (attempt.stop, StopRequest("preempted", "preempted", "Another job needs the nodes.")),
        (attempt.save, SaveRequest(pod="a-head-1")),
        (attempt.result, Result("failed", "error", 1, "E: no", 7, 2, {"loss": 0.5}, "00000007-1.0", 1)),
        (attempt.result, Result("done", "finished", 0, best=BestCheckpoint("00000007-1.0", "f1", 0.5))),
        (attempt.rendezvous, RENDEZVOUS),
        (attempt.arrival(1), Arrival("n2")),
        (attempt.node_failure(1), Arrival("n2", error="too small", exit_code=3)),
        (restart.claim, sample_restart_claim()),
        (restart.plan, ResumePoint(None, 0, 2, ("n1", "n2"), ("10.0.0.1", "10.0.0.2"))),
        (restart.resize, ResizeRequest(4)),
        (restart.failure, sample_failure(signal=9, host="n1", pid=4711, fatal=True)),
        (restart.outcome, Outcome(True, None, metrics={"loss": 1.0}, train_started=1.0, train_ended=2.0)),
        (restart.hang, Hang(3, "rank 0 returned")),
        (restart.returned(1), Returned("train.py:15", {"0": 12})),
        (run.submission("slurm", "12"), sample_submission("12", place={"cluster": "sim"})),
        (run.cancellation("slurm", "12"), Cancellation("u on login")),
    ]


def test_each_record_is_read_as_it_was_written(run):
    for file, _ in files(run):
        assert file.read() is None
        assert not file.exists()
    for file, record in files(run):
        file.write(record)
        assert file.read() == record
        assert file.exists()
        assert json.loads(run.store.read_or_none(file.key))["format_version"] == 1


OLD = {
    "claim": """{"host": "login/b1/pid:[4026531836]", "pid": 31, "pid_started_ticks": 551, "time": 1763832000,
        "resumes": 40, "files": null, "world_size": 4, "launcher": "slurm", "allocation":
        {"scheduler": "slurm", "job_id": "12_3", "start": "2", "nodes": ["n1", "n2"]}}""",
    "heartbeat": '{"host": "a/b/c", "pid": 31, "pid_started_ticks": 551, "time": 1763832002, "counter": 9}',
    "stop": '{"cause": "user", "time": 1763832003.5}',
    "save": '{"pod": "a-worker-2", "time": 1763832003.5}',
    "result": """{"cause": "finished", "checkpoint": null, "ended_at": 1763832009.5, "epoch": null,
        "exit_code": 0, "metrics": {"loss": NaN, "count": 3}, "redone_steps": 0, "restarts": 0,
        "state": "done", "step": 0, "text": "", "train_s": null, "world_size": 4}""",
}


def test_files_of_before_the_format_version_are_read(run):
    """As they were written without it; a claim of Kubernetes names no nodes, one of SLURM no pod."""
    attempt = run.attempt(1)
    for name, text in OLD.items():
        run.store.write_atomic(getattr(attempt, name).key, text.encode())
    claim = attempt.claim.read()
    assert (claim.world_size, claim.progress.resumes, claim.allocation.nodes) == (4, 40, ("n1", "n2"))
    assert (claim.allocation.job_id, claim.allocation.start, claim.allocation.place) == ("12_3", "2", {})
    assert attempt.heartbeat.read().counter == 9
    assert (attempt.stop.read().state, attempt.stop.read().text) == ("stopped", "")
    assert attempt.save.read().pod == "a-worker-2"
    result = attempt.result.read()
    assert result.state == "done" and result.metrics["loss"] != result.metrics["loss"]
    run.store.write_atomic(
        attempt.restart(0).failure.key,
        b"""{"rank": 1, "host": "n1", "pid": 4, "signal": null, "exit_code": null, "error": "ValueError",
        "text": "ValueError: no", "run_exit_code": 1, "cause": "error", "signature": "ValueError: no",
        "fatal": false, "restart": 0, "step": 12}""",
    )
    assert attempt.restart(0).failure.read().step == 12


def test_every_key_of_earlier_readers_is_still_written(run):
    """The keys before the format version, including those that were omitted if they had no value."""
    attempt = run.attempt(1)
    for name, text in OLD.items():
        file = getattr(attempt, name)
        run.store.write_atomic(file.key, text.encode())
        assert json.loads(text).keys() <= json.loads(encoded(file.read())).keys()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"", "it is not JSON: Expecting value"),
        (b'{"state": "do', "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[1]", "it contains list, not an object"),
        (b"{}", "state: Field required"),
        (b'{"state": "done", "cause": "finished", "exit_code": "0"}', "exit_code: .*valid integer"),
        (b'{"state": "done", "cause": "finished", "exit_code": 0, "metrics": {"a": "x"}}', r"metrics\.a: "),
        (b'{"state": "dun", "cause": "finished", "exit_code": 0}', "'dun' is no state of a run"),
        (b'{"state": "done", "cause": "error", "exit_code": 0}', "'error' is no cause of state 'done'"),
        (b'{"format_version": "1"}', "format_version is '1', not a positive whole number"),
        (b'{"format_version": 0}', "format_version is 0, not a positive whole number"),
    ],
)
def test_what_is_no_such_record_is_named_with_its_file_and_a_remedy(run, text, what):
    file = run.attempt(1).result
    run.store.write_atomic(file.key, text)
    with pytest.raises(StorageError, match=what) as caught:
        file.read()
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{run.attempt(1).path / 'result.json'} is damaged: ")
    assert lines[1].endswith("Restore or remove it.")
    assert caught.value.exit_code == EXIT_STORAGE


def test_a_nested_record_is_checked_too(run):
    value = json.loads(encoded(sample_claim(allocation=START)))
    value["allocation"]["nodes"] = "n1,n2"
    with pytest.raises(StorageError, match=r"allocation\.nodes: "):
        decoded(type(sample_claim()), json.dumps(value).encode(), "claim.json")


def test_a_file_of_a_later_version_names_the_version_that_reads_it(run, monkeypatch):
    file = run.attempt(1).result
    monkeypatch.setattr(record_file, "FORMAT_VERSION", 2)
    file.write(Result("done", "finished", 0))
    monkeypatch.undo()
    with pytest.raises(StorageError) as caught:
        file.read()
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"{file.uri} has format 2, and clustertrain ")
    assert first.endswith(" reads up to 1.")
    assert second == "A later version of clustertrain wrote it: use that version here, too."


def test_a_key_of_a_later_version_is_ignored(run):
    for file, record in files(run):
        value = {**json.loads(encoded(record)), "from_the_future": {"a": [1]}}
        run.store.write_atomic(file.key, json.dumps(value).encode())
        assert file.read() == record


def test_a_name_that_is_no_text_is_read(run):
    file = run.attempt(1).restart(0).failure
    file.write(sample_failure(text="no such file: caf\udce9.bin"))
    assert file.read().text == "no such file: caf?.bin"


def test_a_request_is_found_on_this_node_and_in_the_storage(moto_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    attempt = RunDir.newest(moto_s3.location("runs"), "digits").attempt(1)
    attempt.stop.write(StopRequest("user", time=1.0))
    assert attempt.stop.read() == StopRequest("user", time=1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another node"))
    assert attempt.stop.read() == StopRequest("user", time=1.0)
