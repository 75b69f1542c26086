"""What is copied to the folder in which a submitted run works, and the files that a run leaves."""

import os
from pathlib import Path

import pytest

from clustertrain.errors import StorageError
from clustertrain.job.code_folders import places
from clustertrain.job.file import load_job
from clustertrain.run_files.working_folder import (
    copy_code,
    working_folder,
)


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "code"
    (folder / "package").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "package" / "train.py").write_text("v = 1")
    (folder / "words.txt").write_text("a b")
    (folder / "tool.sh").write_text("#!/bin/sh")
    (folder / "tool.sh").chmod(0o755)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "train.pyc").touch()
    return folder


@pytest.fixture
def copy(run):
    """Copies the code; returns what was said, and the files in the folder."""

    def copied(*folders):
        said = []
        copy_code(run, [*map(str, folders)], said.append)
        work = Path(run.store.local_folder(run.work_key))
        return said, {
            str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()
        }

    return copied


def test_later_copies_replace_what_changed_in_the_code_and_keep_what_the_run_wrote(run, code, copy):
    first = {"package/train.py": "v = 1", "words.txt": "a b", "tool.sh": "#!/bin/sh"}
    assert copy(code) == ([], first)
    work = working_folder(run, load_job({"name": "a", "function": "m:f", "code": str(code)}))
    assert (work / "empty").is_dir() and os.access(work / "tool.sh", os.X_OK)

    (work / "model.pt").write_text("trained")
    (work / "words.txt").write_text("a b c, by the run")
    of_run = {**first, "model.pt": "trained", "words.txt": "a b c, by the run"}
    assert copy(code) == ([], of_run)

    (code / "package" / "train.py").write_text("v = 2")
    (code / "tool.sh").unlink()
    (code / "model.pt").write_text("of the user")
    said, files = copy(code)
    assert files == {**of_run, "package/train.py": "v = 2"}
    assert said == [
        f"files of the code are not copied to {work}, where the run has written its own: model.pt"
    ]

    (code / "words.txt").write_text("of the user")
    assert copy(code)[1] == {**of_run, "package/train.py": "v = 2", "words.txt": "of the user"}


def test_a_copy_that_was_interrupted_is_made_again(run, code, copy, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(type(run.copied_code), "write", lambda self, record: os._exit(9))
        if (pid := os.fork()) == 0:
            copy_code(run, [str(code)], print)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    (code / "words.txt").write_text("changed since")
    said, files = copy(code)
    assert (said, files["words.txt"]) == ([], "changed since")


def test_several_folders_are_beside_each_other_as_in_the_unpacked_code(run, code, copy, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "near.py").write_text("x = 5")
    folders = code / "package", tmp_path / "lib"
    _, files = copy(*folders)
    assert files == {"1/train.py": "v = 1", "2/near.py": "x = 5"}
    job = load_job({"name": "a", "function": "m:f", "code": [*map(str, folders)]})
    assert working_folder(run, job) == Path(run.store.local_folder(run.work_key)) / places(job.code)[0]
    assert (working_folder(run, job) / "train.py").exists()


def test_a_file_that_cannot_be_written_is_named(run, code, copy):
    copy(code)
    work = Path(run.store.local_folder(run.work_key))
    (code / "words.txt").unlink()
    (code / "words.txt").mkdir()
    with pytest.raises(StorageError, match=str(work / "words.txt")):
        copy(code)
