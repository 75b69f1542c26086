"""Processes under a guardian, and the folders that killed ones leave."""

import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from clustertrain.errors import ClusterError
from clustertrain.node import variables
from clustertrain.node.processes import this_process
from clustertrain.supervise import private_folder as module
from clustertrain.supervise.private_folder import memory_folder, private_folder, remove, write_token
from clustertrain.supervise.process import Guarded
from support.commands import ran

pytestmark = pytest.mark.slow


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A short path, as the temporary folder of a machine is."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="b") as short:
        monkeypatch.setenv("TMPDIR", short)
        yield short
        for folder in Path(short).glob("ct-*"):
            remove(folder)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_folder_and_the_token_are_private_under_any_umask(base, umask):
    before = os.umask(umask)
    try:
        folder = private_folder()
        token = write_token(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) == 64
    remove(folder)
    assert not folder.exists()


def test_what_a_killed_process_left_is_removed_by_the_next(base):
    code = (
        "import os\n"
        "from clustertrain.supervise.private_folder import private_folder\n"
        "print(private_folder(), flush=True); os.kill(os.getpid(), 9)"
    )
    killed = ran([sys.executable, "-c", code], code=-signal.SIGKILL)
    left = Path(killed.stdout.strip())
    assert left.is_dir() and memory_folder(left).is_dir()
    folder = private_folder()
    assert not left.exists() and not memory_folder(left).exists()
    assert folder.is_dir()


def test_its_part_of_the_shared_memory_is_removed_although_the_temporary_folder_is_another_one(base):
    """As on a node whose scheduler makes a TMPDIR for each job, and removes it."""
    left = private_folder()
    gone = {**asdict(this_process()), "pid_started_ticks": 1}
    (memory_folder(left) / "owner").write_text(json.dumps(gone))
    shutil.rmtree(left)
    folder = private_folder()
    assert not memory_folder(left).exists() and memory_folder(folder).is_dir()
    assert stat.S_IMODE(memory_folder(folder).stat().st_mode) == 0o700


def test_what_still_runs_of_a_killed_process_is_ended_by_the_next(base):
    """Ray's processes have no environment left that could name the folder; each writes a log there."""
    left = private_folder()
    (left / "log").touch()
    gone = {**asdict(this_process()), "pid_started_ticks": 1}
    (left / "owner").write_text(json.dumps(gone))
    writes, reads = "exec 3>>$0; echo up; exec sleep 600", "exec 3<$0; echo up; exec sleep 600"
    processes = [
        subprocess.Popen(["sh", "-c", shell, left / "log"], env=os.environ | env, stdout=subprocess.PIPE)
        for shell, env in ((writes, {}), (reads, {variables.RAY_DIR: str(left)}), (reads, {}))
    ]
    for process in processes:
        assert process.stdout.readline() == b"up\n"
    mine, reader = private_folder(), processes[-1]
    assert [process.wait(60) for process in processes[:2]] == [-signal.SIGKILL] * 2
    assert (reader.poll(), left.exists(), mine.is_dir()) == (None, False, True)
    reader.kill()
    for process in processes:
        process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_what_a_killed_process_of_another_user_left_stays(base):
    left = private_folder()
    (left / "owner").write_text(json.dumps({**asdict(this_process()), "pid_started_ticks": 1}))
    os.chown(left, 65534, 65534)
    assert private_folder() != left
    assert left.exists()


def test_the_folders_of_the_living_stay(base):
    mine = private_folder()
    other = private_folder()
    elsewhere = other.with_name("ct-elsewhere")
    elsewhere.mkdir()
    owner = {**asdict(this_process()), "host": "another/boot/ns", "pid": 1}
    (elsewhere / "owner").write_text(json.dumps(owner))
    private_folder()
    assert mine.is_dir() and other.is_dir() and elsewhere.is_dir()


@pytest.mark.parametrize("named", ["absent", "file", "proc", "long"])
def test_a_temporary_folder_that_cannot_be_used_is_passed_over(base, monkeypatch, named):
    long = f"{base}/{'a' * 30}"
    os.mkdir(long)  # noqa: PTH102
    owner = {**asdict(this_process()), "pid_started_ticks": 1}
    left = Path(long, "ct-mail-0")
    left.mkdir()
    (left / "owner").write_text(json.dumps(owner))
    Path(base, "file").touch()
    bases = {"absent": f"{base}/x", "file": f"{base}/file", "proc": "/proc", "long": long}
    monkeypatch.setenv("TMPDIR", bases[named])
    monkeypatch.setattr(module, "BASES", (base,))
    folder = private_folder()
    assert folder.parent == Path(base)
    assert left.exists() == (named != "long")  # what a killed batch shell left where no socket fits


def test_a_relative_temporary_folder_is_one_of_the_current_folder(base, monkeypatch):
    monkeypatch.chdir(base)
    monkeypatch.setenv("TMPDIR", ".")
    assert private_folder().parent == Path(base)


def test_no_temporary_folder_is_an_error_that_names_each(base, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setattr(module, "BASES", (f"{base}/x",))
    with pytest.raises(ClusterError, match=f"where TMPDIR is /proc: /proc: .*; {base}/x: No such file"):
        private_folder()


@pytest.mark.parametrize("shielded", [False, True])
def test_a_shielded_command_does_not_receive_a_term(tmp_path, shielded):
    folder = tmp_path / "private"
    folder.mkdir()
    program = "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); print('alive', flush=True)"
    guarded = Guarded(
        [sys.executable, "-c", program], tmp_path / "log", folder, os.environ, shielded=shielded
    )
    assert _ends(guarded)
    code = guarded.end()
    assert code == (0 if shielded else 128 + signal.SIGTERM)
    assert ("alive" in (tmp_path / "log").read_text()) == shielded
    assert not folder.exists()


def _ends(guarded):
    return bool(select.select([guarded.fd], [], [], 30)[0])
