"""Which files of the code have changed since the steps before, and which changes are none of it."""

import math
import os
import time

import pytest

from clustertrain.node.processes import this_process
from clustertrain.run_files import snapshot
from clustertrain.run_files.claims import attempts_that_trained
from clustertrain.run_files.provenance import code_changes, record_provenance
from clustertrain.run_files.records.provenance import CodeChange, CodeSource
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.snapshot import UserCode
from support.sample_records import sample_claim

DONE = Result("done", "finished", 0)


@pytest.fixture
def code(tmp_path):
    """The folder of the code, with a file that a job names as data."""
    (tmp_path / "values.csv").write_text("1, 2\n")
    (tmp_path / "set.txt").write_text("1\n")
    return tmp_path


def code_files(job):
    return snapshot.code_files(UserCode.of(job))


def start(run, n, compared, *, resumes, began=math.inf, ended_at=None, **claim):
    """An attempt with this code. Returns what has changed, as its start says it."""
    attempt = run.attempt(n)
    attempt.claim.create(sample_claim(this_process(), resumes=resumes, **claim))
    change = record_provenance(attempt, CodeSource((), compared), began)
    if ended_at is not None:
        attempt.result.write(Result("done", "finished", 0, ended_at=ended_at))
    return change.text if change is not None else None


def test_what_is_compared_are_code_and_data_and_not_what_a_run_or_a_terminal_writes(job, code):
    for name in ("train.log", "slurm-1.out", "README.md", ".gitignore", "empty.txt"):
        (code / name).write_text("" if name == "empty.txt" else name)
    (code / "other.yaml").write_text("name: b\ntask: m:T\n")
    (code / "config.yaml").write_text("depth: 3\n")
    (code / "runs" / "b").mkdir(parents=True)
    (code / "runs" / "b" / "c.py").write_text("c")
    found = code_files(job(data={"set": {"uri": str(code / "set.txt")}}))
    assert found.keys() == {"m.py", "values.csv", "config.yaml", "data.set"}
    assert (found["m.py"].changed_at, found["data.set"].changed_at) == (None, None)
    assert found["values.csv"].changed_at == (code / "values.csv").stat().st_mtime


def test_too_much_or_too_slow_to_compare_is_not_compared(job, code, monkeypatch):
    with (code / "set.txt").open("wb") as file:
        file.truncate(10_000_001)
    assert code_files(job())["set.txt"].digest == "10000001 bytes"
    for name, limit in (("MOST_FILES", 1), ("MOST_BYTES", 3), ("_COMPARED_WITHIN_S", -1)):
        with monkeypatch.context() as patch:
            patch.setattr(snapshot, name, limit)
            assert code_files(job()) == {}, name


def test_the_files_of_the_last_attempt_that_trained_are_compared(run, job, code):
    assert start(run, 1, code_files(job()), resumes=0) is None
    (code / "m.py").write_text("lr = 2\n")
    assert start(run, 2, code_files(job()), resumes=160) == "m.py has changed since step 160"
    (code / "m.py").write_text("lr = 3\n")
    (code / "set.txt").write_text("2\n")
    text = "m.py and set.txt have changed since step 160"
    assert start(run, 3, code_files(job()), resumes=160) == text, "attempt 2 trained nothing"
    assert start(run, 4, code_files(job()), resumes=320) is None
    run.store.write_atomic(f"{run.checkpoints.key}/00000320-3.0/MANIFEST.json", b"{}")
    run.attempt(4).result.write(DONE)
    assert [attempt.n for attempt, _ in attempts_that_trained(run)] == [1, 3], "nor did attempt 4"
    assert [each.text for each in code_changes(run)] == [text]


def test_what_a_run_wrote_into_the_folder_and_what_this_start_writes_there_is_no_change(run, job, code):
    def touched(at):
        (code / "values.csv").write_text(f"{at}\n")
        os.utime(code / "values.csv", (at, at))
        return code_files(job())

    start(run, 1, touched(100), resumes=0, ended_at=200.0)
    assert start(run, 2, touched(150), resumes=4, began=300.0, ended_at=400.0) is None
    assert start(run, 3, touched(500), resumes=8, began=500.0, ended_at=600.0) is None, "by tee"
    assert start(run, 4, touched(650), resumes=12, began=700.0) == "values.csv has changed since step 12"


def test_a_submitted_run_writes_nothing_into_the_folder_of_its_code(run, job, code):
    start(run, 1, code_files(job()), resumes=0, launcher="slurm", ended_at=time.time() + 100)
    (code / "values.csv").write_text("3\n")
    assert start(run, 2, code_files(job()), resumes=8) == "values.csv has changed since step 8"


def test_a_code_change_of_a_script_names_the_attempt_before(run, job, code):
    start(run, 1, code_files(job()), resumes=0, files="a")
    (code / "m.py").write_text("lr = 2\n")
    assert start(run, 2, code_files(job()), resumes=0, files="b") == "m.py has changed since attempt 1"
    assert start(run, 3, {}, resumes=0, files="c") is None, "nothing is known of it"


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "a has"), (3, "a, b and c have"), (4, "a, b, c and 1 more have"), (6, "a, b, c and 3 more have")],
)
def test_a_code_change_names_at_most_three_files(count, text):
    assert CodeChange(tuple("abcdef"[:count]), "step 1").text == f"{text} changed since step 1"
