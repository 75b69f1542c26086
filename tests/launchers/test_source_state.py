"""What git says of a job's code, and what an attempt records of its start."""

import pytest

from clustertrain.launchers import source_state
from clustertrain.launchers.source_state import read_source
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.provenance import record_provenance
from support.commands import ran
from support.sample_records import sample_claim


@pytest.fixture
def code(tmp_path):
    """A folder in a repository with one commit."""
    folder = tmp_path / "repository" / "code"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("lr = 0.1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return folder


def git(folder, *arguments):
    return ran(["git", "-C", str(folder), *arguments], code=0).stdout


def test_the_commit_and_the_changes_of_each_repository_once(code, tmp_path):
    (clean,) = read_source([str(code)]).repositories
    assert (clean.commit, clean.changed, clean.diff) == (git(code, "rev-parse", "HEAD").strip(), False, "")
    (code / "train.py").write_text("lr = 0.2\n")
    (code / "new.py").touch()
    (code / "more").mkdir()
    found, outside = read_source([str(code), str(code / "more"), str(tmp_path)]).repositories
    assert found.folder == git(code, "rev-parse", "--show-toplevel").strip()
    assert found.changed and "+lr = 0.2" in found.diff
    assert outside.commit is None and "not a git repository" in outside.note


def test_a_large_diff_and_a_missing_git_are_notes(code, monkeypatch):
    (code / "train.py").write_text("x" * (source_state.MOST_DIFF_BYTES + 1))
    (found,) = read_source([str(code)]).repositories
    assert found.changed and found.diff == "" and "bytes and is left out" in found.note
    monkeypatch.setenv("PATH", "")
    (found,) = read_source([str(code)]).repositories
    assert found.commit is None and found.note.startswith("git is not on PATH")


def test_an_attempt_has_the_diff_as_a_file_that_git_applies(code, tmp_path):
    (code / "train.py").write_text("lr = 0.2\n")
    attempt = RunDir.newest(str(tmp_path / "runs"), "a").attempt(1)
    attempt.claim.create(sample_claim())
    record_provenance(attempt, read_source([str(code)]), 0)
    found = attempt.provenance.read()
    assert found.source.repositories[0].changed and found.source.repositories[0].diff == ""
    assert any(each.startswith("pydantic==") for each in found.packages)
    assert found.cpus > 0 and found.memory_bytes > 0
    git(code, "checkout", "-q", "--", ".")
    git(code, "apply", str(attempt.run.local_path(attempt.diff_key)))
    assert (code / "train.py").read_text() == "lr = 0.2\n"
