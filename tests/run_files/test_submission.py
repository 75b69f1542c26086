"""A job and its code, from the machine that submits to a node: packed, stored, found and unpacked again."""

import io
import json
import os
import socket
import tarfile
import time

import pytest
import yaml

from clustertrain.errors import DataError, JobError, StorageError
from clustertrain.job.file import load_job, record_of
from clustertrain.launchers.scheduler.interface import Sent
from clustertrain.run_files import snapshot
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.scheduler import Cancellation
from clustertrain.run_files.snapshot import take_snapshot
from clustertrain.run_files.submission import Submission, record, upload
from clustertrain.staging.archive import extract
from clustertrain.storage import Location


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


@pytest.fixture
def job(tmp_path, code):
    def make(**sections):
        path = tmp_path / "job.yaml"
        base = {"name": "digits", "function": "train:f", "code": str(code), "storage": str(tmp_path / "runs")}
        path.write_text(yaml.safe_dump({**base, **sections}))
        return load_job(path)

    return make


def unpacked(taken, tmp_path):
    """name → (bytes, may it be run) of what came out, folders with None."""
    folder = tmp_path / f"unpacked-{taken.digest}-{time.monotonic_ns()}"
    (tmp_path / "code.tar.gz").write_bytes(taken.code)
    extract(tmp_path / "code.tar.gz", folder)
    return {
        path.relative_to(folder).as_posix(): None
        if path.is_dir()
        else (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
    }


def submission_of(run, taken, **options):
    return Submission(run.store.location, run.name, run.generation, taken.digest, **options)


# ---------------------------------------------------------------------------------------- what is packed


def test_files_folders_and_executable_bits_are_restored(job, code, tmp_path):
    (code / "pkg" / "deep").mkdir(parents=True)
    (code / "pkg" / "deep" / "Ünïcode name.py").write_bytes(bytes(range(256)))
    (code / "pkg" / "empty").mkdir()
    (code / "go.sh").write_text("#!/bin/sh\n")
    (code / "go.sh").chmod(0o711)
    (code / ("long-" + "x" * 200)).mkdir()
    (code / ("long-" + "x" * 200) / ("y" * 200)).write_text("deep")
    assert unpacked(take_snapshot(job()), tmp_path) == {
        "train.py": (b"print(1)\n", False),
        "go.sh": (b"#!/bin/sh\n", True),
        "pkg": None,
        "pkg/deep": None,
        "pkg/deep/Ünïcode name.py": (bytes(range(256)), False),
        "pkg/empty": None,
        "long-" + "x" * 200: None,
        "long-" + "x" * 200 + "/" + "y" * 200: (b"deep", False),
    }


LEFT_OUT = [
    *(".git/config", "pkg/__pycache__/a.pyc", ".venv/bin/python", "web/node_modules/a.js", ".mypy_cache/x"),
    *("my-env/pyvenv.cfg", "my-env/lib/a.py", "some-cache/CACHEDIR.TAG", "some-cache/a"),
    *("digits-12.out", "pkg/digits-13.out"),
]


def test_files_that_are_not_code_are_left_out(job, code, tmp_path):
    kept = ["pkg/a.py", ".env.example", "git/config", "digits.out", "old-digits-12.out", "venv.py"]
    for name in LEFT_OUT + kept:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).touch()
    outputs = [code / "digits-12.out", code / "pkg" / "digits-13.out", code / "digits-14.out"]
    found = unpacked(take_snapshot(job(), outputs), tmp_path)
    files = {name for name, content in found.items() if content is not None}
    assert files == {*kept, "train.py"}


def test_runs_and_data_sets_are_left_out_also_behind_links(job, code, tmp_path):
    for name in ("runs/digits/g1/job.yaml", "sets/train/0.bin", "test.tar", "outside/x"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("x")
    (code / "link-to-runs").symlink_to("runs")
    made = job(
        storage=str(code / "runs"),
        data={"train": {"uri": str(code / "sets" / "train")}, "test": {"uri": f"file://{code}/test.tar"}},
    )
    assert unpacked(take_snapshot(made), tmp_path).keys() == {"train.py", "sets", "outside", "outside/x"}


def test_runs_are_left_out_if_the_storage_is_the_code_folder(job, code, tmp_path):
    for name in ("digits/g1/job.yaml", "other/g2/job.yaml", "g1/notes.txt"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).touch()
    found = unpacked(take_snapshot(job(storage=str(code))), tmp_path)
    assert found.keys() == {"train.py", "g1", "g1/notes.txt"}


def test_a_link_is_packed_as_its_target(job, code, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "util.py").write_text("shared")
    (code / "shared").symlink_to(tmp_path / "shared")
    (code / "again.py").symlink_to("train.py")
    (code / "nowhere").symlink_to("absent")
    (code / "itself").symlink_to("itself")
    os.mkfifo(code / "pipe")  # it is not opened
    (tmp_path / "shared" / "up").symlink_to(code)
    (tmp_path / "shared" / "round").symlink_to(".")
    found = unpacked(take_snapshot(job()), tmp_path)
    assert found.keys() == {"train.py", "again.py", "shared", "shared/util.py"}
    assert found["shared/util.py"][0] == b"shared"
    assert found["again.py"] == found["train.py"]


def test_too_much_is_refused(job, code, monkeypatch):
    with (code / "weights.bin").open("wb") as file:
        file.truncate(101_000_000)
    with pytest.raises(StorageError, match="more than 100 MB or 20000 files and folders") as caught:
        take_snapshot(job())
    assert str(caught.value).startswith(f"{code}: ")
    (code / "weights.bin").unlink()
    (code / "big").mkdir()
    monkeypatch.setattr(snapshot, "MOST_FILES", 1)
    with pytest.raises(StorageError, match="or 1 files and folders"):
        take_snapshot(job())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may not read")
@pytest.mark.parametrize(
    ("name", "verb"), [("mine.py", "read"), ("mine", "listed")], ids=["a file", "a folder"]
)
def test_code_that_cannot_be_read_names_the_file(job, code, name, verb):
    (code / "mine.py").touch(mode=0) if verb == "read" else (code / "mine").mkdir(mode=0)
    data = {"theirs": {"uri": str(code / "not-seen")}}  # pytest's folders are closed to others
    made = job(storage="s3://bucket/prefix", data=data).model_copy(update={"code": (".",)})
    child = os.fork()
    if child == 0:
        os.chdir(code)  # pytest's folders are closed to others, but not to one who is inside
        os.setuid(65534)
        try:
            take_snapshot(made)
        except StorageError as error:
            os._exit(0 if f"{name} cannot be {verb} by uid 65534" in str(error) else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


# ------------------------------------------------------------------------------------------- the digest


def test_the_digest_depends_on_content_and_not_on_times_or_owners(job, code):
    first = take_snapshot(job())
    os.utime(code / "train.py", (1, 1))
    (code / "train.py").chmod(0o600)
    if os.geteuid() == 0:
        os.chown(code / "train.py", 1234, 1234)
    (code / "__pycache__").mkdir()
    assert take_snapshot(job()) == first
    assert len(first.digest) == 16
    with tarfile.open(fileobj=io.BytesIO(first.code), mode="r:gz") as archive:
        (member,) = archive.getmembers()
    assert (member.mtime, member.uid, member.gid, member.uname, member.mode) == (0, 0, 0, "", 0o644)
    assert first.job_yaml == record_of(job()).encode()


CHANGES = {
    "other bytes": lambda code: (code / "train.py").write_text("print(2)\n"),
    "may be run": lambda code: (code / "train.py").chmod(0o755),
    "another name": lambda code: (code / "train.py").rename(code / "train2.py"),
    "a file more": lambda code: (code / "empty").touch(),
    "a folder more": lambda code: (code / "empty").mkdir(),
    "another job": lambda code: {"env": {"A": "1"}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_job_or_code_changes_the_digest(job, code, change):
    first = take_snapshot(job()).digest
    sections = change(code)
    assert take_snapshot(job(**sections if isinstance(sections, dict) else {})).digest != first


# -------------------------------------------------------------------------------------------- the store


@pytest.fixture(params=["posix", pytest.param("s3", marks=pytest.mark.slow)])
def run(request, tmp_path):
    """A run on each kind of storage."""
    if request.param == "posix":
        return RunDir.newest(str(tmp_path / "runs"), "digits")
    return RunDir.newest(request.getfixturevalue("moto_s3").location("runs"), "digits")


def test_a_snapshot_that_was_cut_off_is_written_again(run, job):
    taken = take_snapshot(job())
    run.store.write_atomic(run.snapshot_code_key(taken.digest), taken.code[:20])
    upload(run, taken)
    assert run.store.read_or_none(run.snapshot_code_key(taken.digest)) == taken.code


def test_a_node_with_another_file_system_reports_it(tmp_path):
    here = Submission(Location(str(tmp_path / "runs")), "digits", 1, "0" * 16)
    for find in (here.job, lambda: here.unpack_code(tmp_path / "there")):
        with pytest.raises(StorageError) as caught:
            find()
        assert str(tmp_path / "runs/digits/g1/submissions") in str(caught.value)
        assert socket.gethostname() in str(caught.value)
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:40] + b"x" + data[41:], lambda _: b""]
)
def test_damaged_code_is_refused(run, job, damage, tmp_path):
    taken = take_snapshot(job())
    upload(run, taken)
    run.store.write_atomic(run.snapshot_code_key(taken.digest), damage(taken.code))
    with pytest.raises(DataError):
        submission_of(run, taken).unpack_code(tmp_path / "there")


def test_code_is_not_unpacked_over_something(run, job, tmp_path):
    taken = take_snapshot(job())
    upload(run, taken)
    (tmp_path / "there").mkdir()
    with pytest.raises(StorageError, match="there"):
        submission_of(run, taken).unpack_code(tmp_path / "there")


@pytest.mark.parametrize(
    "text", ["", "job.yaml", "[]", "{}", '{"location": {"uri": "x"}}', '{"location": 1}', "[" * 9999]
)
def test_a_variable_that_submit_did_not_set_is_an_error(text):
    with pytest.raises(JobError, match="CLUSTERTRAIN_SUBMISSION is not what"):
        Submission.from_text(text)


def test_records_of_any_scheduler_are_listed_by_time(run):
    """PBS has jobs such as 123.server, and a plug-in chooses the name of its launcher."""
    of = [("slurm", "9"), ("slurm", "10"), ("pbs-pro2", "123.server"), ("flux", "f-2.1")]
    for scheduler, job_id in of:
        record(run, scheduler, Sent(job_id, f"/o/{job_id}"), "0" * 16)
        run.cancellation(scheduler, job_id).create(Cancellation(by="u on login"))
    run.store.write_atomic(run.snapshot_job_key("a" * 16), b"")
    assert [(each.scheduler, each.job_id) for each in run.submissions()] == of
    keys = {"scheduler", "place", "job_id", "time", "digest", "output", "format_version"}
    assert json.loads(run.store.read_or_none(run.submission("slurm", "9").key)).keys() == keys
    assert RunDir.newest(run.store.location, "digits") == run
