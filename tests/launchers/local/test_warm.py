"""When a run may use what `clustertrain up` keeps, and who may answer it."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.file import load_job
from clustertrain.launchers.local.warm import commands, messages
from clustertrain.launchers.local.warm.commands import take
from clustertrain.launchers.local.warm.messages import (
    JOB_FILE,
    SOCKET,
    check_peer,
    connect,
    keeper_folder,
)
from clustertrain.launchers.local.warm.start import start_of
from commands import ran
from small_job import job

__all__ = ["job"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    keeper_folder().mkdir(mode=0o700)
    return keeper_folder()


@pytest.fixture
def listens(folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(folder / SOCKET))
        listening.listen()
        yield listening


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "/lib/a.so"),
        ("OMP_NUM_THREADS", "number 7"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("MY_OWN", "secret"),
        ("MY_NAME", os.fsdecode(b"J\xf6rg")),
    ],
)
def test_another_value_of_any_variable_is_another_start(monkeypatch, job, name, value):
    before = start_of(job(), 2)
    monkeypatch.setenv(name, value)
    after = start_of(job(), 2)
    assert {each for each in before | after if before.get(each) != after.get(each)} == {name}
    assert value not in after[name], "a value may be a secret"


def test_the_path_of_the_socket_is_short_wherever_its_folder_may_be(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert keeper_folder().parent == Path("/tmp")


def test_another_terminal_is_none(monkeypatch, job):
    before = start_of(job(), 2)
    monkeypatch.setenv("TERM", "other")
    monkeypatch.setenv("SSH_CONNECTION", "1")
    assert start_of(job(), 2) == before


def test_the_resources_the_folder_and_the_env_of_the_job_belong_to_it(tmp_path, monkeypatch, job):
    plain = job()
    before = start_of(plain, 2)
    assert start_of(plain, 1) != before
    assert start_of(job(env={"A": "1"}), 2) != before
    assert start_of(job(train={"epochs": 2, "batch_size": 8, "seed": 5}), 2) != before, "PYTHONHASHSEED"
    umask = os.umask(0o027)
    try:
        assert start_of(plain, 2) != before
    finally:
        os.umask(umask)
    assert start_of(plain, 2) == before
    monkeypatch.chdir(tmp_path)
    assert start_of(plain, 2) != before


@pytest.mark.parametrize("base", ["", "not/here"])
def test_without_a_folder_of_the_login_it_is_below_tmp(monkeypatch, tmp_path, base):
    monkeypatch.setenv("XDG_RUNTIME_DIR", base and str(tmp_path / base))
    assert keeper_folder() == Path(f"/tmp/clustertrain-{os.getuid()}")


def test_a_keeper_that_ends_while_it_is_asked_is_none(listens):
    def end():
        connection, _ = listens.accept()
        connection.close()

    thread = threading.Thread(target=end)
    thread.start()
    assert commands._state({}) is None
    thread.join()


def test_a_keeper_that_is_slow_to_answer_is_waited_for(listens, monkeypatch):
    monkeypatch.setattr(messages, "_ANSWERS_WITHIN_S", 0.1)
    assert commands._state({}) is None


def test_a_keeper_that_does_not_end_is_not_said_to_have_ended(listens, monkeypatch):
    monkeypatch.setattr(commands, "_ENDS_WITHIN_S", 0.1)
    lines = []
    with pytest.raises(ClusterError, match=f"Process {os.getpid()}, .* runs after 0.1 s"):
        commands.down(lines.append)
    assert lines == []


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o702])
def test_a_folder_that_others_may_use_is_refused(folder, mode):
    folder.chmod(mode)
    with pytest.raises(ClusterError, match=f"has mode {mode:03o}"):
        connect()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(folder):
    os.chown(folder, 65534, 65534)
    with pytest.raises(ClusterError, match="belongs to user 65534"):
        connect()


def test_a_link_to_a_private_folder_is_refused(folder, tmp_path):
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ClusterError, match="has to be a folder"):
        connect()


def test_another_users_process_is_refused(listens, monkeypatch):
    connection = connect()
    accepted, _ = listens.accept()
    with connection, accepted:
        assert check_peer(accepted) == os.getpid()
        monkeypatch.setattr(messages.os, "getuid", lambda: 12345)
        with pytest.raises(ClusterError, match="at the other end"):
            check_peer(accepted)


def test_a_run_whose_refused_keeper_cannot_be_asked_says_so_and_starts_its_own(folder, job):
    folder.chmod(0o755)
    lines = []
    assert take(job(), 2, ExitStack(), lines.append) is None
    assert len(lines) == 1 and "has mode 755" in lines[0] and "starts its own" in lines[0]


def test_nobody_there_is_no_word(folder, job):
    lines = []
    assert take(job(), 2, ExitStack(), lines.append) is None
    assert lines == []


UP_TO_THE_START_OF_THE_KEEPER = """
import sys
from clustertrain.job.file import load_job
from clustertrain.launchers.local.warm import commands
commands.start_in_background = lambda *args, **options: sys.exit()
commands.up(load_job(sys.argv[1]), 60.0, print)
"""


def test_the_job_of_the_keeper_may_have_any_characters_in_any_locale(folder, tmp_path):
    job_file = tmp_path / "job.yaml"
    job_file.write_text("name: a\nfunction: m:f\nargs: {x: é→}\n", "utf-8")
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran([sys.executable, "-c", UP_TO_THE_START_OF_THE_KEEPER, job_file], code=0, env=ascii_only, timeout=60)
    assert load_job(folder / JOB_FILE).args == {"x": "é→"}


def test_ctrl_c_of_up_ends_the_keeper(folder, job, monkeypatch):
    started = []

    def start(*arguments, **options):
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[0].pid

    def state(start):
        if started:
            raise KeyboardInterrupt

    monkeypatch.setattr(commands, "start_in_background", start)
    monkeypatch.setattr(commands, "_state", state)
    with pytest.raises(KeyboardInterrupt):
        commands.up(job(), 60, print)
    assert started[0].wait(10) == -signal.SIGTERM
